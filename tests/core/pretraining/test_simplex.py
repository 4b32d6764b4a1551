from itertools import product

import torch
from torch import Tensor

from lipt.core.pretraining.simplex import (
    Losses,
    exponentiated_gradient,
    fit,
    held_out,
    resampled,
    uniform,
)


def distances(points_NK: Tensor) -> Losses:
    """Half the squared distance of the weights from each example's point."""
    return lambda weights_RK: (
        (weights_RK[:, None] - points_NK.double()[None]).square().sum(dim=2) / 2
    )


def fitted(points_NK: Tensor, strength: float = 0.0, num_steps: int = 400) -> Tensor:
    each_1N = torch.full((1, len(points_NK)), 1 / len(points_NK), dtype=torch.float64)
    strengths_1 = torch.tensor([strength])
    sizes = (points_NK.shape[1], num_steps)
    return exponentiated_gradient(distances(points_NK), each_1N, strengths_1, *sizes)[0]


def projected(point_K: Tensor) -> Tensor:
    """The nearest point of the simplex, by the sorted thresholds of Duchi et al. 2008."""
    sorted_K = point_K.double().sort(descending=True).values
    excess_K = (sorted_K.cumsum(dim=0) - 1) / torch.arange(1, len(point_K) + 1)
    last = int((sorted_K > excess_K).nonzero().max())
    return (point_K.double() - excess_K[last]).clamp(min=0)


def test_weights_end_at_a_point_within_the_simplex_or_its_projection() -> None:
    within = torch.tensor([0.2, 0.5, 0.3])
    assert torch.allclose(fitted(within[None]), within.double(), atol=1e-3)
    for point in ((0.9, 0.6, -0.5), (2.0, 0.1, 0.0), (0.4, 0.4, 0.4), (-1.0, 3.0, 2.9)):
        found_K = fitted(torch.tensor([point]))
        assert torch.allclose(found_K, projected(torch.tensor(point)), atol=5e-3)


def test_weights_match_a_slow_grid_over_three_sources() -> None:
    draws = torch.Generator().manual_seed(3)
    points_NK = torch.rand(20, 3, generator=draws) * 2 - 0.5
    steps = [number / 50 for number in range(51)]
    grid_RK = torch.tensor(
        [(a, b, 1 - a - b) for a, b in product(steps, steps) if a + b <= 1], dtype=torch.float64
    )
    best_K = grid_RK[distances(points_NK)(grid_RK).mean(dim=1).argmin()]
    assert (fitted(points_NK) - best_K).abs().max() <= 0.02


def test_each_fit_has_its_own_examples() -> None:
    shares_RN = torch.eye(2, dtype=torch.float64)
    points_NK = torch.tensor([[0.7, 0.3], [0.1, 0.9]])
    found_RK = exponentiated_gradient(distances(points_NK), shares_RN, torch.zeros(2), 2, 400)
    assert torch.allclose(found_RK, points_NK.double(), atol=1e-3)


def test_a_strong_penalty_keeps_equal_shares() -> None:
    found_K = fitted(torch.tensor([[1.0, 0.0]]), strength=1000.0)
    assert torch.allclose(found_K, uniform(2), atol=1e-3)


def test_the_penalty_is_minimized_with_the_loss() -> None:
    # At the minimum the slopes by both weights are equal: (w - p) + strength x log(2 w).
    first, second = fitted(torch.tensor([[0.8, 0.2]]), strength=0.5).tolist()
    slopes = (
        (first - 0.8) + 0.5 * torch.tensor(2 * first).log().item(),
        (second - 0.2) + 0.5 * (torch.tensor(2 * second).log().item()),
    )
    assert abs(slopes[0] - slopes[1]) < 1e-3
    assert 0.5 < first < 0.8


def test_weights_of_noise_are_penalized_and_those_of_a_clear_target_are_not() -> None:
    # What is left out always lies opposite to the mean of the rest.
    away_NK = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    noise_NK = uniform(3) + torch.cat([away_NK, -away_NK])
    assert fit(distances(noise_NK), 12, 3, seed=0).strength > 0
    clear_NK = torch.tensor([[0.7, 0.2, 0.1]]).repeat(12, 1)
    found = fit(distances(clear_NK), 12, 3, seed=0)
    assert found.strength == 0
    assert torch.allclose(found.weights_K, clear_NK[0].double(), atol=5e-3)


def test_intervals_hold_the_weights_and_narrow_with_more_examples() -> None:
    draws = torch.Generator().manual_seed(1)
    points_NK = torch.tensor([0.5, 0.3, 0.2]) + 0.2 * torch.randn(400, 3, generator=draws)
    widths = []
    for number in (25, 400):
        found = fit(distances(points_NK[:number]), number, 3, seed=0)
        assert bool((found.low_K <= found.weights_K + 1e-3).all())
        assert bool((found.weights_K <= found.high_K + 1e-3).all())
        widths.append(float((found.high_K - found.low_K).mean()))
    # Four times narrower, for sixteen times the examples; within half of it.
    assert widths[1] < widths[0] / 2


def test_held_out_losses_are_of_weights_that_have_not_seen_the_example() -> None:
    points_NK = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    weights_FK = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double()
    fold_N = torch.tensor([0, 1])
    assert held_out(distances(points_NK), weights_FK, fold_N).tolist() == [1.0, 1.0]


def test_resamples_draw_as_many_examples_as_there_are() -> None:
    counts_BN = resampled(7, 5, seed=0)
    assert counts_BN.sum(dim=1).tolist() == [7.0] * 5
    assert torch.equal(counts_BN, resampled(7, 5, seed=0))
    assert not torch.equal(counts_BN, resampled(7, 5, seed=1))


def test_a_single_example_is_fitted() -> None:
    found = fit(distances(torch.tensor([[0.6, 0.4]])), 1, 2, seed=0, num_resamples=3)
    assert found.weights_K.sum().item() == 1.0
