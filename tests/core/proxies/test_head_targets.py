"""Head targets: the ridge head on labels and numbers, against heads fitted without each example."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lipt.common.targets.values import MultiLabel, Regression
from lipt.core.proxies.head_targets import HeadTargets
from lipt.core.proxies.ridge import LeaveOneOut, leave_one_out, scaling_of

NUM_EXAMPLES, PENALTY = 24, 0.01


def features(num_features: int) -> Tensor:
    return torch.randn(NUM_EXAMPLES, num_features, generator=torch.Generator().manual_seed(0))


def numbers(features_ND: Tensor) -> HeadTargets:
    own_NT = 100 + 20 * features_ND[:, :2] + features_ND[:, 1:3]
    deviations, means = torch.std_mean(own_NT.double(), dim=0, correction=0)
    target = Regression(mean=tuple(means.tolist()), std=tuple(deviations.tolist()))
    return HeadTargets(target, own_NT)


def labels(features_ND: Tensor) -> HeadTargets:
    return HeadTargets(MultiLabel(3), (features_ND[:, :3] > 0.3).byte())


def fit(
    features_ND: Tensor, wanted: HeadTargets, penalties: tuple[float, ...] = (PENALTY,)
) -> LeaveOneOut:
    return leave_one_out(
        features_ND,
        torch.zeros(NUM_EXAMPLES, dtype=torch.int64),
        1,
        generator=torch.Generator().manual_seed(0),
        wanted=wanted,
        penalties=penalties,
    )


def refitted(features_ND: Tensor, values_NT: Tensor) -> Tensor:
    """What a head says of each example that was fitted to all others; the intercept is free."""
    weights_N = torch.ones(NUM_EXAMPLES, dtype=torch.float64)
    scaled_ND = scaling_of(features_ND, weights_N).apply(features_ND)
    inputs_NX = torch.cat([scaled_ND, weights_N[:, None]], dim=1)
    penalties_X = torch.full((inputs_NX.shape[1],), PENALTY * NUM_EXAMPLES, dtype=torch.float64)
    penalties_X[-1] = 0
    outputs = []
    for left_out in range(NUM_EXAMPLES):
        kept = torch.arange(NUM_EXAMPLES) != left_out
        normal_XX = inputs_NX[kept].T @ inputs_NX[kept] + torch.diag(penalties_X)
        head_XT = torch.linalg.solve(normal_XX, inputs_NX[kept].T @ values_NT[kept])
        outputs.append(inputs_NX[left_out] @ head_XT)
    return torch.stack(outputs)


@pytest.mark.parametrize("num_features", [4, 40], ids=["few", "more-than-examples"])
@pytest.mark.parametrize("make", [numbers, labels])
def test_outputs_are_those_of_heads_fitted_without_the_example(
    make: Callable[[Tensor], HeadTargets], num_features: int
) -> None:
    features_ND = features(num_features)
    wanted = make(features_ND)
    found = fit(features_ND, wanted)
    expected = refitted(features_ND, wanted.values())
    torch.testing.assert_close(found.outputs_NC.double(), expected, rtol=1e-4, atol=1e-5)


def test_numbers_errors_are_outputs_less_standardized_numbers() -> None:
    features_ND = features(4)
    wanted = numbers(features_ND)
    found = fit(features_ND, wanted)
    rows = slice(5, 9)
    expected = found.outputs_NC[rows] - wanted.values()[rows].float()
    torch.testing.assert_close(wanted.errors(found.outputs_NC[rows], rows), expected)
    # Linear in the features but for what the penalty takes.
    assert 0.9 < found.accuracy < 1.0
    assert found.accuracy == wanted.score(found.outputs_NC)


def test_labels_errors_are_chances_less_labels() -> None:
    wanted = HeadTargets(MultiLabel(2), torch.tensor([[1, 0], [0, 1]], dtype=torch.uint8))
    outputs = torch.tensor([[0.75, -0.5], [1.5, 0.75]])
    errors = wanted.errors(outputs, slice(0, 2))
    torch.testing.assert_close(errors, torch.tensor([[-0.25, 0.0], [1.0, -0.25]]))
    # Above a half is a yes: two of two found, one said wrongly.
    assert wanted.score(outputs) == pytest.approx(4 / 5)


@pytest.mark.parametrize("make", [numbers, labels])
def test_the_penalty_that_explains_most_is_taken(make: Callable[[Tensor], HeadTargets]) -> None:
    features_ND = features(4)
    found = fit(features_ND, make(features_ND), penalties=(PENALTY, 100.0))
    assert found.penalty == PENALTY
    assert found.accuracies[0][1] > found.accuracies[1][1]
