import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lipt.common.config.values import dump, validate
from lipt.common.errors import ConfigError, DataError
from lipt.data.sources.user_data import is_class, read_targets
from lipt.data.targets.values import (
    MultiLabel,
    Regression,
    SingleLabel,
    Target,
    TargetValues,
    label_values,
    number_values,
    quantile_strata,
    rarest_label_strata,
)


def read(targets: list[Any], names: list[str] | None = None) -> TargetValues:
    return read_targets(targets, names, "mine")


@pytest.mark.parametrize("targets", [[1.0, 2.0, 3.0], torch.tensor([[1.0], [2.0], [3.0]])])
def test_floats_are_numbers_with_their_mean_and_deviation(targets: Any) -> None:
    values = read(list(targets))
    assert values.target == Regression(mean=(2.0,), std=(math.sqrt(2 / 3),))
    assert values.values.tolist() == [[1.0], [2.0], [3.0]]
    assert values.strata_N.tolist() == [0, 1, 2]
    assert values.strata_names == ("up to 1", "1 to 2", "above 2")


def test_vectors_are_numbers_or_labels() -> None:
    assert all(map(is_class, [0, 3, True, torch.tensor(1), np.int64(2), np.uint8(0)]))
    assert read([1, 2.5, 3.0]).values.flatten().tolist() == [1.0, 2.5, 3.0]
    values = read([np.array([0.0, 7.5]), np.array([4.0, 8.5])], ["height", "weight"])
    assert values.target == Regression(mean=(2.0, 8.0), std=(2.0, 0.5))
    assert values.names == ("height", "weight")
    assert values.strata_names == ("height up to 0", "height above 0")
    for dtype in (torch.float32, torch.int64, torch.bool):
        values = read(list(torch.tensor([[1, 0, 1], [0, 0, 0]]).to(dtype)))
        assert values.target == MultiLabel(3)
        assert values.values.dtype == torch.uint8
        assert values.values.tolist() == [[1, 0, 1], [0, 0, 0]]
        assert values.strata_N.tolist() == [0, 3]
        assert values.strata_names == ("0", "1", "2", "none")
    values = read([["cat", "dog"], [], ["ant"]])
    assert values.names == ("ant", "cat", "dog")
    assert values.values.tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
    given = read([["cat"], ["ant", "cat"]], ["dog", "cat", "ant"])
    assert given.values.tolist() == [[0, 1, 0], [0, 1, 1]]


def test_unsupported_targets_are_refused_with_a_remedy() -> None:
    words = r"row 1 .*single-label, multi-label or regression.*choose by features"
    matrix = torch.zeros(8, 8, dtype=torch.int64)
    for target in ({"boxes": [[0, 0, 1, 1]]}, matrix, None, [[1, 2], [3]], "a caption"):
        with pytest.raises(DataError, match=words):
            read([1.5, target])


NUMBERS = Regression(mean=(10.0, 0.0), std=(2.0, 0.5))
CASES: list[tuple[Target, Tensor]] = [
    (SingleLabel(3), torch.tensor([0, 2, 1, 2, 0])),
    (MultiLabel(3), torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]]).byte()),
    (NUMBERS, torch.tensor([[12.0, 0.5], [8.0, 0.0], [10.0, -1.0], [9.0, 2.0], [14.0, 0.25]])),
]
IDS = ["class", "labels", "numbers"]


def scored(target: Target, outputs: Tensor, targets: Tensor, batch_size: int = 2) -> float:
    tally = target.tally()
    pairs = zip(torch.split(outputs, batch_size), torch.split(targets, batch_size), strict=True)
    for outputs_BT, targets_B in pairs:
        tally.add(outputs_BT, targets_B)
    return tally.score()


def test_losses_by_hand_and_small_residuals() -> None:
    logits = torch.tensor([[1.0, 3.0]]).log()
    assert SingleLabel(2).losses(logits, torch.tensor([0])).item() == pytest.approx(math.log(4))
    # -ln 1/2 - ln 1/4
    labels = torch.tensor([[1, 0]])
    assert MultiLabel(2).losses(logits, labels).item() == pytest.approx(math.log(8))
    loss = NUMBERS.losses(torch.tensor([[1.5, -1.0]]), torch.tensor([[12.0, 0.5]]))
    assert loss.item() == pytest.approx((0.25 + 4.0) / 2)
    # The sigmoid of -20 is 2.0611536e-9, of 20 that much less than 1.
    residuals = MultiLabel(2).residuals(torch.tensor([[-20.0, 20.0]]), torch.tensor([[0, 1]]))
    assert residuals[0].tolist() == pytest.approx([2.0611536e-9, -2.0611536e-9], rel=1e-6)


@pytest.mark.parametrize(("target", "targets"), CASES, ids=IDS)
def test_residual_times_feature_equals_autograd_s_gradient(target: Target, targets: Tensor) -> None:
    torch.manual_seed(0)
    head, features_ND = nn.Linear(4, target.num_outputs), torch.randn(5, 4)
    residuals_NT = target.residuals(head(features_ND).detach(), targets)
    for row in range(5):
        loss = target.losses(head(features_ND[row : row + 1]), targets[row : row + 1]).sum()
        weight, bias = torch.autograd.grad(loss, [head.weight, head.bias])
        torch.testing.assert_close(residuals_NT[row, :, None] * features_ND[row], weight)
        torch.testing.assert_close(residuals_NT[row], bias)
    outputs_NT = head(features_ND).detach()
    losses_N = target.losses(outputs_NT, targets)
    assert target.mean_loss(outputs_NT, targets).item() == pytest.approx(losses_N.mean().item())


@pytest.mark.parametrize(("target", "targets"), CASES, ids=IDS)
def test_a_score_does_not_depend_on_batches_or_order(target: Target, targets: Tensor) -> None:
    outputs = torch.randn(5, target.num_outputs, generator=torch.Generator().manual_seed(2))
    order = torch.tensor([3, 0, 4, 1, 2])
    scores = {scored(target, outputs, targets, size) for size in (1, 2, 5)}
    assert scores == {scored(target, outputs[order], targets[order])}


def test_accuracy_and_micro_f1_by_hand() -> None:
    outputs = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, math.inf]])
    # The last one is right, but not finite.
    assert scored(SingleLabel(2), outputs, torch.tensor([0, 0, 1])) == 1 / 3
    outputs = torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]])
    targets = torch.tensor([[1, 0, 0], [1, 1, 0]])
    # Two found, one said wrongly, one missed.
    assert scored(MultiLabel(3), outputs, targets) == 4 / 6
    # What is not finite is a wrong answer, whatever it would have been.
    assert scored(MultiLabel(3), outputs * math.nan, targets) == 0.0
    # Nothing to find, and nothing said.
    assert scored(MultiLabel(3), -outputs.abs(), targets * 0) == 1.0


def test_chance_is_the_score_of_the_best_constant_answer() -> None:
    assert SingleLabel(4).chance(torch.tensor([0, 2, 2, 1, 2])) == 3 / 5
    # Always the first label: 3 found, 1 said wrongly, 2 missed; the first two: 5, 3 and 0.
    targets = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]]).byte()
    assert MultiLabel(3).chance(targets) == pytest.approx(max(6 / 9, 10 / 13))
    assert NUMBERS.chance(torch.tensor([[12.0, 0.5], [8.0, 0.0]])) == 0.0


def test_r_squared_equals_scikit_learn_s_and_has_a_minimum() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    targets = CASES[2][1]
    outputs = torch.randn(5, 2, generator=torch.Generator().manual_seed(3)) / 4
    own_units = outputs * torch.tensor(NUMBERS.std) + torch.tensor(NUMBERS.mean)
    expected = metrics.r2_score(targets.numpy(), own_units.numpy())
    assert scored(NUMBERS, outputs, targets) == pytest.approx(expected)
    means = NUMBERS.standardized(targets.mean(dim=0, keepdim=True)).expand(5, 2)
    assert scored(NUMBERS, means, targets) == pytest.approx(0.0, abs=1e-12)
    assert scored(NUMBERS, NUMBERS.standardized(targets), targets) == 1.0
    assert scored(NUMBERS, means + 100, targets) == -1.0
    assert scored(NUMBERS, means * math.nan, targets) == -1.0


def test_merits_by_hand() -> None:
    outputs = torch.tensor([[1.0, -1.0, 1.0]])
    assert MultiLabel(3).merits(outputs, torch.tensor([[1, 0, 0]])).item() == pytest.approx(2 / 3)
    assert SingleLabel(3).merits(outputs, torch.tensor([0])).item() == 1.0
    off = NUMBERS.merits(torch.tensor([[1.5, 1.0]]), torch.tensor([[12.0, 0.5]]))
    assert off.item() == pytest.approx(1 - 0.25 / 2)


def test_targets_are_validated_and_written_as_nested_values() -> None:
    for target in (SingleLabel(3), MultiLabel(4), NUMBERS):
        assert validate(type(target), dump(target)) == target
    for mean, std in (((0.0,), (0.0,)), ((0.0,), (1.0, 1.0)), ((math.nan,), (1.0,))):
        with pytest.raises(ConfigError, match="a positive deviation for each number"):
            Regression(mean=mean, std=std)


def test_strata_are_at_least_two_nonempty_bins_or_rarest_labels() -> None:
    for values, expected in (
        ([float(number) for number in range(99, -1, -1)], [10] * 10),
        ([0.0] * 95 + [1.0] * 5, [95, 5]),
        ([0.0] * 5 + [1.0] * 95, [5, 95]),
        ([1.0, 2.0], [1, 1]),
        ([1.0, 2.0, 3.0], [1, 1, 1]),
    ):
        assert quantile_strata(torch.tensor(values))[0].bincount().tolist() == expected
    # Label 0 is had three times, 1 and 2 twice.
    targets = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 0, 1], [0, 1, 1], [0, 0, 0]])
    assert rarest_label_strata(targets).tolist() == [1, 0, 2, 1, 3]


@pytest.mark.parametrize(
    ("values_of", "values", "names", "words"),
    [
        (number_values, [[0.0, 3.0], [1.0, 3.0]], None, "target 1 is the same number for all 2"),
        (number_values, [[0.0], [math.nan], [math.inf]], None, r"of row 1 is \[nan\], 2 of all"),
        (label_values, [[0, 1], [2, 1]], None, "row 1 has 2 for label 0, which is neither 0 nor"),
        (label_values, [[1, 1], [1, 1]], ["one"], r"of the shape \(2, 2\) with 1 names"),
        (None, [[0.5], [0.5, 1.5]], None, "targets of its rows have 1 to 2 numbers"),
        (None, [["cat"], ["dog"]], ["dog"], "the label 'cat', which is none of its 1 `classes`"),
    ],
)
def test_invalid_target_values_are_refused(
    values_of: Any, values: list[Any], names: list[str] | None, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        read(values, names) if values_of is None else values_of(torch.tensor(values), names, "x")


def test_one_mistyped_number_neither_sets_the_scale_nor_the_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    right_N1 = torch.arange(1.0, 100.0)[:, None]
    wrong_N1 = torch.cat([right_N1, torch.tensor([[1e12]])])
    target = number_values(wrong_N1, None, "data").target
    assert isinstance(target, Regression)
    assert "1 of 100 targets are more than 10 deviations from the mean" in caplog.text
    # Quartiles of 1..99 and 1e12 are 25.75 and 75.25: the upper fence is 75.25 + 5 * 49.5.
    numbers = np.array([*range(1, 100), 322.75])
    assert target.mean[0] == pytest.approx(numbers.mean())
    assert target.std[0] == pytest.approx(numbers.std())
    zeros_N1 = torch.zeros(100, 1)
    assert target.losses(zeros_N1, wrong_N1)[-1] == 50  # half of 10 deviations squared
    assert target.residuals(zeros_N1, wrong_N1)[-1] == -10
    # The score is R² of the numbers as they are.
    tally = target.tally()
    tally.add(target.standardized(right_N1), right_N1)
    tally.add(torch.tensor([[10.0]]), wrong_N1[-1:])
    assert tally.score() < 0.1


@pytest.mark.parametrize("unit", [1e-300, 1.0, 1e300])
def test_no_number_is_cut_without_a_wrong_one(
    unit: float, caplog: pytest.LogCaptureFixture
) -> None:
    numbers_N1 = torch.randn(500, 1, generator=torch.Generator().manual_seed(0)).double() * unit
    target = number_values(numbers_N1, None, "data").target
    assert isinstance(target, Regression)
    assert torch.equal(target.learned(numbers_N1), target.standardized(numbers_N1))
    assert caplog.text == ""
