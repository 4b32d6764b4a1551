from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.config.values import dump, validate
from lipt.common.errors import ConfigError
from lipt.common.targets.values import MultiLabel, Regression, SingleLabel, Target

NUMBERS = Regression(mean=(10.0, 0.0), std=(2.0, 0.5))
CASES: list[tuple[Target, Tensor]] = [
    (SingleLabel(3), torch.tensor([0, 2, 1, 2, 0])),
    (MultiLabel(3), torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]]).byte()),
    (NUMBERS, torch.tensor([[12.0, 0.5], [8.0, 0.0], [10.0, -1.0], [9.0, 2.0], [14.0, 0.25]])),
]
IDS = ["class", "labels", "numbers"]


def scored(target: Target, outputs: Tensor, targets: Tensor, batch_size: int = 2) -> float:
    tally = target.tally()
    pairs = zip(outputs.split(batch_size), targets.split(batch_size), strict=True)
    for outputs_BT, targets_B in pairs:
        tally.add(outputs_BT, targets_B)
    return tally.score()


def test_residuals_by_hand() -> None:
    # softmax of (0, ln 3) is (1/4, 3/4); the sigmoid of ln 3 is 3/4.
    logits = torch.tensor([[1.0, 3.0]]).log()
    torch.testing.assert_close(
        SingleLabel(2).residuals(logits, torch.tensor([0])), torch.tensor([[-0.75, 0.75]])
    )
    torch.testing.assert_close(
        MultiLabel(2).residuals(logits, torch.tensor([[1, 1]], dtype=torch.uint8)),
        torch.tensor([[-0.5, -0.25]]),
    )
    # 12 is one deviation above the mean, 0.5 too.
    torch.testing.assert_close(
        NUMBERS.residuals(torch.tensor([[1.5, -1.0]]), torch.tensor([[12.0, 0.5]])),
        torch.tensor([[0.5, -2.0]]),
    )


def test_losses_by_hand() -> None:
    logits = torch.tensor([[1.0, 3.0]]).log()
    assert SingleLabel(2).losses(logits, torch.tensor([0])).item() == pytest.approx(math.log(4))
    # -ln 1/2 - ln 1/4
    labels = torch.tensor([[1, 0]])
    assert MultiLabel(2).losses(logits, labels).item() == pytest.approx(math.log(8))
    loss = NUMBERS.losses(torch.tensor([[1.5, -1.0]]), torch.tensor([[12.0, 0.5]]))
    assert loss.item() == pytest.approx((0.25 + 4.0) / 2)


@pytest.mark.parametrize(("target", "targets"), CASES, ids=IDS)
def test_residual_times_feature_is_each_examples_gradient(target: Target, targets: Tensor) -> None:
    torch.manual_seed(0)
    head, features_ND = nn.Linear(4, target.num_outputs), torch.randn(5, 4)
    residuals_NT = target.residuals(head(features_ND).detach(), targets)
    for row in range(5):
        loss = target.losses(head(features_ND[row : row + 1]), targets[row : row + 1]).sum()
        weight, bias = torch.autograd.grad(loss, [head.weight, head.bias])
        torch.testing.assert_close(residuals_NT[row, :, None] * features_ND[row], weight)
        torch.testing.assert_close(residuals_NT[row], bias)


@pytest.mark.parametrize(("target", "targets"), CASES, ids=IDS)
def test_a_batchs_loss_is_the_mean_of_its_examples_losses(target: Target, targets: Tensor) -> None:
    outputs = torch.randn(5, target.num_outputs, generator=torch.Generator().manual_seed(1))
    losses = target.losses(outputs, targets)
    assert losses.shape == (5,)
    assert target.mean_loss(outputs, targets).item() == pytest.approx(losses.mean().item())


def test_a_confident_answers_residual_keeps_its_digits() -> None:
    # The sigmoid of -20 is 2.0611536e-9, of 20 that much less than 1.
    residuals = MultiLabel(2).residuals(torch.tensor([[-20.0, 20.0]]), torch.tensor([[0, 1]]))
    assert residuals[0].tolist() == pytest.approx([2.0611536e-9, -2.0611536e-9], rel=1e-6)


@pytest.mark.parametrize(("target", "targets"), CASES, ids=IDS)
def test_a_score_does_not_depend_on_batches_or_order(target: Target, targets: Tensor) -> None:
    outputs = torch.randn(5, target.num_outputs, generator=torch.Generator().manual_seed(2))
    order = torch.tensor([3, 0, 4, 1, 2])
    scores = {scored(target, outputs, targets, size) for size in (1, 2, 5)}
    assert scores == {scored(target, outputs[order], targets[order])}


def test_accuracy_by_hand() -> None:
    outputs = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, math.inf]])
    # The last one is right, but not finite.
    assert scored(SingleLabel(2), outputs, torch.tensor([0, 0, 1])) == 1 / 3


def test_micro_f1_by_hand() -> None:
    outputs = torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]])
    targets = torch.tensor([[1, 0, 0], [1, 1, 0]])
    # Two found, one said wrongly, one missed.
    assert scored(MultiLabel(3), outputs, targets) == 4 / 6
    # What is not finite is a wrong answer, whatever it would have been.
    assert scored(MultiLabel(3), outputs * math.nan, targets) == 0.0
    # Nothing to find, and nothing said.
    assert scored(MultiLabel(3), -outputs.abs(), targets * 0) == 1.0


def test_r_squared_is_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    target, targets = CASES[2]
    outputs = torch.randn(5, 2, generator=torch.Generator().manual_seed(3)) / 4
    expected = metrics.r2_score(targets.numpy(), NUMBERS.in_own_units(outputs).numpy())
    assert scored(target, outputs, targets) == pytest.approx(expected)


def test_r_squared_of_the_mean_is_0_of_the_truth_1_and_has_a_floor() -> None:
    target, targets = CASES[2]
    means = target.standardized(targets.mean(dim=0, keepdim=True)).expand(5, 2)  # type: ignore[attr-defined]
    assert scored(target, means, targets) == pytest.approx(0.0, abs=1e-12)
    assert scored(target, NUMBERS.standardized(targets), targets) == 1.0
    assert scored(target, means + 100, targets) == -1.0
    assert scored(target, means * math.nan, targets) == -1.0


def test_a_constant_number_counts_only_where_it_is_told_exactly() -> None:
    target, targets = Regression(mean=(0.0,), std=(1.0,)), torch.ones(3, 1)
    assert scored(target, targets, targets) == 1.0
    assert scored(target, targets + 1e-3, targets) == 0.0


def test_merits_are_near_the_score() -> None:
    outputs = torch.tensor([[1.0, -1.0, 1.0]])
    assert MultiLabel(3).merits(outputs, torch.tensor([[1, 0, 0]])).item() == pytest.approx(2 / 3)
    assert SingleLabel(3).merits(outputs, torch.tensor([0])).item() == 1.0
    off = NUMBERS.merits(torch.tensor([[1.5, 1.0]]), torch.tensor([[12.0, 0.5]]))
    assert off.item() == pytest.approx(1 - 0.25 / 2)


def test_numbers_come_back_in_their_own_units() -> None:
    _, targets = CASES[2]
    back = NUMBERS.in_own_units(NUMBERS.standardized(targets))
    torch.testing.assert_close(back.float(), targets)


def test_smoothing_draws_labels_towards_a_half() -> None:
    outputs = torch.tensor([[2.0, -1.0]])
    smoothed = MultiLabel(2).losses(outputs, torch.tensor([[1, 0]]), label_smoothing=0.2)
    wanted = torch.tensor([[0.9, 0.1]])
    expected = functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="sum")
    assert smoothed.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("target", [SingleLabel(3), MultiLabel(4), NUMBERS])
def test_targets_are_validated_and_written_as_nested_values(target: Target) -> None:
    assert validate(type(target), dump(target)) == target


@pytest.mark.parametrize(
    ("mean", "std"), [((0.0,), (0.0,)), ((0.0,), (1.0, 1.0)), ((math.nan,), (1.0,))]
)
def test_numbers_without_a_deviation_cannot_be_standardized(
    mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    with pytest.raises(ConfigError, match="a positive deviation for each number"):
        Regression(mean=mean, std=std)


def test_a_share_of_right_answers_is_bounded_by_those_to_come() -> None:
    tally = SingleLabel(2).tally()
    # One right, one wrong.
    tally.add(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    assert tally.best_possible(0) == tally.score() == 0.5
    assert tally.best_possible(2) == 0.75


@pytest.mark.parametrize(("target", "targets"), CASES, ids=IDS)
def test_no_score_is_above_what_was_possible(target: Target, targets: Tensor) -> None:
    torch.manual_seed(1)
    outputs = torch.randn(len(targets), target.num_outputs)
    tally, possible = target.tally(), [1.0]
    for number in range(len(targets)):
        tally.add(outputs[number : number + 1], targets[number : number + 1])
        possible.append(tally.best_possible(len(targets) - number - 1))
    assert all(tally.score() <= bound for bound in possible)
    assert possible == sorted(possible, reverse=True)
