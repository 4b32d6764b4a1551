import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.computation import computation
from lipt.core.proxies import ridge
from lipt.core.proxies.ridge import (
    HeadTargets,
    LeaveOneOut,
    class_weights,
    fit_inverse_temperature,
    leave_one_out,
    scaling_of,
)
from lipt.data.targets.values import MultiLabel, Regression, number_values


def fit(
    features_ND: Tensor,
    labels_N: Tensor,
    num_classes: int = 3,
    *,
    penalty: float = 0.01,
    confidence_N: Tensor | None = None,
    head_targets: HeadTargets | None = None,
) -> LeaveOneOut:
    return leave_one_out(
        features_ND,
        labels_N,
        num_classes,
        generator=torch.Generator().manual_seed(0),
        confidence_N=confidence_N,
        head_targets=head_targets,
        penalties=(penalty,),
    )


def refitted(
    features_ND: Tensor,
    labels_N: Tensor,
    num_classes: int,
    penalty: float,
    confidence_N: Tensor | None = None,
    values_NC: Tensor | None = None,
) -> Tensor:
    """The output for each example of a head that was fitted to all others; N x C."""
    weights_N = class_weights(labels_N, confidence_N)
    ones_N1 = torch.ones(len(labels_N), 1, dtype=torch.float64)
    scaled_ND = scaling_of(features_ND, weights_N).apply_(features_ND.double())
    inputs_NX = torch.cat([scaled_ND, ones_N1], dim=1)
    onehot_NC = functional.one_hot(labels_N, num_classes).double()
    targets_NC = onehot_NC if values_NC is None else values_NC
    # The intercept, last, is not penalized.
    penalties_X = torch.full((inputs_NX.shape[1],), penalty * len(labels_N), dtype=torch.float64)
    penalties_X[-1] = 0
    outputs = []
    for left_out in range(len(labels_N)):
        kept = torch.arange(len(labels_N)) != left_out
        weighted = inputs_NX[kept] * weights_N[kept, None]
        normal_XX = weighted.T @ inputs_NX[kept] + torch.diag(penalties_X)
        head_XC = torch.linalg.solve(normal_XX, weighted.T @ targets_NC[kept])
        outputs.append(inputs_NX[left_out] @ head_XC)
    return torch.stack(outputs)


def made_up(
    num_examples: int, num_features: int, *, num_classes: int = 3, seed: int = 1
) -> tuple[Tensor, Tensor]:
    """Features of some classes' means and noise, every class present, the first ones larger."""
    generator = torch.Generator().manual_seed(seed)
    labels_N = torch.randint(num_classes**2, (num_examples,), generator=generator)
    labels_N = labels_N.double().sqrt().long()
    labels_N[:num_classes] = torch.arange(num_classes)
    means_CD = torch.randn(num_classes, num_features, generator=generator)
    noise_ND = torch.randn(num_examples, num_features, generator=generator)
    return 3 * means_CD[labels_N] + 5 * noise_ND + 7, labels_N


@pytest.mark.parametrize("penalty", [1e-4, 0.01, 100.0])
@pytest.mark.parametrize(
    ("num_examples", "num_features"), [(40, 5), (12, 12), (12, 30), (2, 1), (3, 4), (290, 270)]
)
def test_outputs_are_leave_one_out(num_examples: int, num_features: int, penalty: float) -> None:
    num_classes = min(3, num_examples)
    features_ND, labels_N = made_up(num_examples, num_features, num_classes=num_classes)
    found = fit(features_ND, labels_N, num_classes, penalty=penalty)
    expected_NC = refitted(features_ND, labels_N, num_classes, penalty)
    torch.testing.assert_close(found.outputs_NC, expected_NC.float(), rtol=1e-5, atol=1e-5)
    weights_N = class_weights(labels_N)
    right_N = (expected_NC.argmax(dim=-1) == labels_N).double()
    assert found.accuracy == pytest.approx(float(weights_N @ right_N / weights_N.sum()))


@pytest.mark.parametrize(("num_examples", "num_features"), [(290, 270), (40, 5), (12, 30)])
def test_large_heads_in_float32_differ_by_rounding_alone(
    num_examples: int, num_features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    features_ND, labels_N = made_up(num_examples, num_features)
    expected_NC = refitted(features_ND, labels_N, 3, 0.01)
    monkeypatch.setattr(ridge, "_MOST_EXACT", 0)
    found = fit(features_ND, labels_N)
    torch.testing.assert_close(found.outputs_NC, expected_NC.float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("num_examples", "num_features"), [(40, 5), (12, 30)])
def test_low_confidence_examples_affect_only_the_fit(num_examples: int, num_features: int) -> None:
    features_ND, labels_N = made_up(num_examples, num_features)
    confidence_N = torch.ones(num_examples, dtype=torch.float64)
    # Of every class someone is believed.
    suspected_I = torch.arange(3, num_examples, 3)
    confidence_N[suspected_I] = 1e-6
    found = fit(features_ND, labels_N, confidence_N=confidence_N)
    expected_NC = refitted(features_ND, labels_N, 3, 0.01, confidence_N)
    torch.testing.assert_close(found.outputs_NC, expected_NC.float(), rtol=1e-4, atol=1e-4)
    # Another label of one who is not believed changes nothing that can be seen.
    lying_N = labels_N.clone()
    lying_N[suspected_I[-1]] = (labels_N[suspected_I[-1]] + 1) % 3
    misled = fit(features_ND, lying_N, confidence_N=confidence_N)
    torch.testing.assert_close(misled.outputs_NC, found.outputs_NC, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("num_features", [4, 40])
def test_a_class_without_examples_is_never_predicted(num_features: int) -> None:
    features_ND, labels_N = made_up(20, num_features)
    found = fit(features_ND, labels_N, 5)
    assert bool((found.outputs_NC[:, 3:] == 0).all())
    torch.testing.assert_close(
        found.outputs_NC[:, :3], fit(features_ND, labels_N, 3).outputs_NC, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("num_features", [10, 60])
def test_leave_one_out_is_exact_for_a_unique_feature(num_features: int) -> None:
    # Its leverage is 1 - 1e-6: in float32 nothing would be left of that. How much of float64's
    # digits is depends on the linear algebra beneath torch.
    features_ND, labels_N = made_up(40, num_features)
    features_ND = torch.cat([features_ND, torch.eye(40)[:, :1]], dim=1)
    found = fit(features_ND, labels_N, penalty=1e-6)
    expected_NC = refitted(features_ND, labels_N, 3, 1e-6)
    torch.testing.assert_close(found.outputs_NC, expected_NC.float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("num_features", [1, 3])
def test_a_single_example_has_no_leave_one_out_output(num_features: int) -> None:
    found = fit(torch.ones(1, num_features), torch.tensor([2]))
    assert found.outputs_NC.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("num_features", [4, 40])
def test_the_scale_of_features_does_not_matter(num_features: int) -> None:
    features_ND, labels_N = made_up(20, num_features)
    torch.testing.assert_close(
        fit(features_ND * 1e4 - 5e4, labels_N).outputs_NC,
        fit(features_ND, labels_N).outputs_NC,
        rtol=0,
        atol=1e-3,
    )


def test_classes_of_twenty_examples_have_the_same_weight_and_smaller_ones_less() -> None:
    # 80 of the first class, 20 of the second: each example of these counts four times as much.
    labels_N = torch.tensor([0] * 80 + [2] * 20)
    assert class_weights(labels_N).tolist() == [0.625] * 80 + [2.5] * 20
    # A class of one example weighs a twentieth of the class of 84.
    weights_N = class_weights(torch.tensor([0] * 84 + [1]))
    assert weights_N[:84].tolist() == pytest.approx([85 / 84 / 1.05] * 84)
    assert float(weights_N[84]) == pytest.approx(0.05 * 85 / 1.05)
    # Where no class has 20, all examples count alike.
    assert class_weights(torch.tensor([0] * 8 + [2] * 2)).tolist() == [1.0] * 10


def test_examples_without_confidence_fill_no_class() -> None:
    labels_N = torch.tensor([0] * 40 + [1] * 40)
    confidence_N = torch.ones(80, dtype=torch.float64)
    confidence_N[40:] = 1e-9
    weights_N = class_weights(labels_N, confidence_N)
    assert float(weights_N[40:].sum()) < 1e-6


@pytest.mark.parametrize("count", [1, 3, 12])
def test_mistyped_labels_take_no_examples_of_another_class(count: int) -> None:
    features_ND, labels_N = separated(60)
    typed_N = labels_N.clone()
    typed_N[torch.randperm(180, generator=torch.Generator().manual_seed(0))[:count]] = 3
    found = fit(features_ND, typed_N, 4, penalty=0.01)
    assert torch.equal(found.outputs_NC.argmax(dim=-1), labels_N)


@pytest.mark.parametrize("count", [3, 5, 10])
def test_a_rare_class_is_recognized_by_its_features(count: int) -> None:
    features_ND, labels_N = separated(60)
    kept_N = torch.ones(180, dtype=torch.bool)
    kept_N[120 + count :] = False
    found = fit(features_ND[kept_N], labels_N[kept_N], penalty=0.01)
    assert torch.equal(found.outputs_NC.argmax(dim=-1), labels_N[kept_N])


def separated(num_per_class: int) -> tuple[Tensor, Tensor]:
    """Three classes at a distance of some seven deviations from each other, in twelve features."""
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.arange(3).repeat_interleave(num_per_class)
    features_ND = torch.randn(len(labels_N), 12, generator=generator)
    features_ND[torch.arange(len(labels_N)), labels_N] += 5
    return features_ND, labels_N


def test_the_penalty_has_the_best_leave_one_out_accuracy() -> None:
    features_ND, labels_N = made_up(60, 40)
    penalties = (1e-4, 0.1, 10.0)
    found = leave_one_out(
        features_ND, labels_N, 3, generator=torch.Generator(), penalties=penalties
    )
    alone = [fit(features_ND, labels_N, penalty=penalty) for penalty in penalties]
    best = max(single.accuracy for single in alone)
    assert found.penalty == max(single.penalty for single in alone if single.accuracy == best)
    assert found.accuracy == pytest.approx(best)


@pytest.mark.parametrize("seed", range(6))
def test_penalties_are_compared_on_many_examples(seed: int) -> None:
    # The classes differ in the small difference of two features: a large penalty guesses.
    generator = torch.Generator().manual_seed(seed)
    labels_N, noise_N = torch.arange(60) % 2, 10 * torch.randn(60, generator=generator)
    features_ND = torch.stack([noise_N, noise_N + labels_N], dim=1)
    found = leave_one_out(features_ND, labels_N, 2, generator=generator, penalties=(1e-6, 0.1))
    assert found.penalty == 1e-6


@pytest.mark.parametrize("num_features", [20, 300])
def test_blocks_and_threads_change_at_most_a_millionth(
    num_features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    features_ND, labels_N = made_up(200, num_features)
    with computation(1):
        expected = fit(features_ND, labels_N)
    with computation(2):
        threads = fit(features_ND, labels_N)

    def small(num_rows: int, *_: int, most_rows: int = 0) -> list[slice]:
        return [slice(start, min(start + 33, num_rows)) for start in range(0, num_rows, 33)]

    monkeypatch.setattr(ridge, "row_blocks", small)
    blocks = fit(features_ND, labels_N)
    for found in (threads, blocks):
        torch.testing.assert_close(found.outputs_NC, expected.outputs_NC, rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_features", [20, 300])
def test_the_decomposition_has_one_thread(
    num_features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, decompose = list[int](), torch.linalg.eigh

    def counted(matrix: Tensor, **options: str) -> tuple[Tensor, Tensor]:
        used.append(torch.get_num_threads())
        return decompose(matrix, **options)

    monkeypatch.setattr(torch.linalg, "eigh", counted)
    with computation(2):
        fit(*made_up(200, num_features))
    assert used == [1]


def hinting(num_wrong: int) -> tuple[Tensor, Tensor]:
    """Outputs that hint at 100 labels of three classes, the first `num_wrong` of them changed."""
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.randint(3, (100,), generator=generator)
    outputs_NC = torch.randn(100, 3, generator=generator) * 0.2
    outputs_NC[torch.arange(100), labels_N] += 0.5
    labels_N[:num_wrong] = (labels_N[:num_wrong] + 1) % 3
    return outputs_NC, labels_N


@pytest.mark.parametrize("num_wrong", [5, 20, 40])
def test_the_inverse_temperature_is_the_most_likely_of_a_fine_grid(num_wrong: int) -> None:
    outputs_NC, labels_N = hinting(num_wrong)
    weights_N = torch.linspace(0.5, 1.5, 100, dtype=torch.float64)

    def likelihood(inverse_temperature: float) -> float:
        logs_NC = (outputs_NC.double() * inverse_temperature).log_softmax(dim=-1)
        return float(weights_N @ logs_NC.gather(1, labels_N[:, None]).squeeze(1))

    grid = [10.0 ** (power / 500) for power in range(-1500, 1500)]
    best = max(grid, key=likelihood)
    found = fit_inverse_temperature(outputs_NC, labels_N, weights_N)
    assert math.log10(found) == pytest.approx(math.log10(best), abs=1 / 500)
    assert likelihood(found) >= likelihood(best) - 1e-9


def test_outputs_without_errors_have_the_highest_inverse_temperature() -> None:
    labels_N = torch.arange(30) % 3
    outputs_NC = 0.1 * functional.one_hot(labels_N, 3)
    found = fit_inverse_temperature(outputs_NC, labels_N, torch.ones(30, dtype=torch.float64))
    assert found == pytest.approx(1e4, rel=0.01)


NUM_EXAMPLES, PENALTY = 24, 0.01


def random_features(num_features: int) -> Tensor:
    return torch.randn(NUM_EXAMPLES, num_features, generator=torch.Generator().manual_seed(0))


def numbers(features_ND: Tensor) -> HeadTargets:
    own_NT = 100 + 20 * features_ND[:, :2] + features_ND[:, 1:3]
    deviations, means = torch.std_mean(own_NT.double(), dim=0, correction=0)
    target = Regression(mean=tuple(means.tolist()), std=tuple(deviations.tolist()))
    return HeadTargets(target, own_NT)


def labels(features_ND: Tensor) -> HeadTargets:
    return HeadTargets(MultiLabel(3), (features_ND[:, :3] > 0.3).byte())


def fit_to(features_ND: Tensor, head_targets: HeadTargets) -> LeaveOneOut:
    zeros_N = torch.zeros(NUM_EXAMPLES, dtype=torch.int64)
    return fit(features_ND, zeros_N, 1, penalty=PENALTY, head_targets=head_targets)


@pytest.mark.parametrize("num_features", [4, 40], ids=["few", "more-than-examples"])
@pytest.mark.parametrize("make", [numbers, labels])
def test_multi_label_and_number_outputs_are_leave_one_out(
    make: Callable[[Tensor], HeadTargets], num_features: int
) -> None:
    features_ND = random_features(num_features)
    head_targets = make(features_ND)
    found = fit_to(features_ND, head_targets)
    zeros_N = torch.zeros(NUM_EXAMPLES, dtype=torch.int64)
    expected = refitted(features_ND, zeros_N, 1, PENALTY, values_NC=head_targets.values())
    torch.testing.assert_close(found.outputs_NC.double(), expected, rtol=1e-4, atol=1e-5)


def test_one_mistyped_number_does_not_hide_the_others() -> None:
    features_ND = random_features(4)
    own_N1 = features_ND[:, :1] + 5
    own_N1[3] = 1e12
    values = number_values(own_N1, None, "data")
    assert isinstance(values.target, Regression)
    head_targets = HeadTargets(values.target, values.values)
    found = fit_to(features_ND, head_targets)
    errors_N = head_targets.errors(found.outputs_NC, slice(0, NUM_EXAMPLES)).abs()[:, 0]
    assert int(errors_N.argmax()) == 3
    right_NC = found.outputs_NC[torch.arange(NUM_EXAMPLES) != 3]
    known_N = features_ND[torch.arange(NUM_EXAMPLES) != 3, 0]
    assert torch.corrcoef(torch.stack([right_NC[:, 0], known_N]))[0, 1] > 0.5


def test_errors_of_numbers_and_labels() -> None:
    features_ND = random_features(4)
    head_targets = numbers(features_ND)
    found = fit_to(features_ND, head_targets)
    rows = slice(5, 9)
    expected = found.outputs_NC[rows] - head_targets.values()[rows].float()
    torch.testing.assert_close(head_targets.errors(found.outputs_NC[rows], rows), expected)
    # Linear in the features but for what the penalty takes.
    assert 0.9 < found.accuracy < 1.0
    assert found.accuracy == head_targets.score(found.outputs_NC)
    head_targets = HeadTargets(MultiLabel(2), torch.tensor([[1, 0], [0, 1]], dtype=torch.uint8))
    outputs = torch.tensor([[0.75, -0.5], [1.5, 0.75]])
    errors = head_targets.errors(outputs, slice(0, 2))
    torch.testing.assert_close(errors, torch.tensor([[-0.25, 0.0], [1.0, -0.25]]))
    # Above a half is a yes: two of two found, one said wrongly.
    assert head_targets.score(outputs) == pytest.approx(4 / 5)
