import pytest
import torch

from lipt.core.mixture.baselines import by_size, greedy_shares, lone_ranking, nearest_sources
from lipt.core.mixture.densities import (
    Featured,
    expectation_maximization,
    log_densities,
)
from lipt.core.mixture.simplex import exponentiated_gradient
from lipt.core.mixture.sources import apportion, draw
from lipt.core.mixture.verdict import Finding, judge
from lipt.data.targets.values import Regression, SingleLabel


def shares(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_counts_add_up_and_remainders_go_to_the_largest() -> None:
    assert apportion(shares(0.5, 0.3, 0.2), 7) == [4, 2, 1]
    assert apportion(shares(1.0, 1.0, 1.0), 2) == [1, 1, 0]


def test_a_small_source_is_drawn_again_only_once_it_is_used_up() -> None:
    sources = [torch.arange(3), torch.arange(10, 30)]
    drawn = draw(sources, shares(0.5, 0.5), 14, generator=torch.Generator().manual_seed(0))
    counts = drawn.bincount(minlength=30)
    assert sorted(counts[:3].tolist()) == [2, 2, 3]
    assert counts[10:].sum() == 7
    assert counts[10:].max() == 1


def test_sizes_and_tempered_sizes() -> None:
    assert by_size(torch.tensor([1, 3])).tolist() == [0.25, 0.75]
    # The root of 9 is 3.
    assert by_size(torch.tensor([1, 9]), 0.5).tolist() == [0.25, 0.75]


def test_lone_ranking_is_the_softmax_of_negative_losses() -> None:
    # A difference of log 3.
    assert lone_ranking(shares(1.0986123, 0.0)).tolist() == pytest.approx([0.25, 0.75])


def test_each_target_example_counts_for_the_source_of_its_nearest() -> None:
    sources = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [-1.0, -1.0]])]
    features_ND = torch.tensor([[3.0, 0.1], [0.2, 2.0], [-1.0, -2.0], [0.1, 5.0]])
    assert nearest_sources(sources, features_ND).tolist() == [0.25, 0.75]


def test_greedy_shares_take_in_what_does_not_raise_the_loss() -> None:
    # The target is (1/2, 1/2, 0): the second source helps, the third does not.
    def loss_of(shares_K: torch.Tensor) -> float:
        return float((shares_K - shares(0.5, 0.5, 0.0)).square().sum())

    assert greedy_shares(shares(0.1, 0.2, 0.3), loss_of).tolist() == [0.5, 0.5, 0.0]


def classes(number: int, centre: float, seed: int, apart: float = 3.0) -> Featured:
    draws = torch.Generator().manual_seed(seed)
    labels_N = torch.randint(2, (number,), generator=draws)
    features_ND = torch.randn(number, 4, generator=draws)
    features_ND[:, 0] += centre
    features_ND[:, 1] += apart * labels_N
    return Featured(features_ND, labels_N)


def test_the_closed_form_recovers_the_parts_of_a_mixture() -> None:
    sources = [classes(500, 0.0, 1), classes(500, 6.0, 2), classes(500, -6.0, 3)]
    first, second = classes(300, 0.0, 4), classes(100, 6.0, 5)
    both = Featured(
        torch.cat([first.features_ND, second.features_ND]),
        torch.cat([first.targets_N, second.targets_N]),
    )
    found_NK = log_densities(sources, both, SingleLabel(2))
    assert expectation_maximization(found_NK).tolist() == pytest.approx([0.75, 0.25, 0], abs=0.02)


def test_the_closed_form_tells_wrong_labels_from_right_ones() -> None:
    right, wrong = classes(800, 0.0, 1), classes(800, 0.0, 2)
    swapped = Featured(wrong.features_ND, wrong.targets_N.roll(1))
    found_NK = log_densities([right, swapped], classes(200, 0.0, 3), SingleLabel(2))
    assert expectation_maximization(found_NK)[0] > 0.95


def test_the_closed_form_tells_rules_of_numbers_apart() -> None:
    draws = torch.Generator().manual_seed(0)

    def numbers(number: int, slope: float) -> Featured:
        features_ND = torch.randn(number, 3, generator=draws)
        return Featured(features_ND, slope * features_ND[:, :1].double())

    target = Regression((0.0,), (1.0,))
    found_NK = log_densities([numbers(400, 1.0), numbers(400, -1.0)], numbers(100, 1.0), target)
    assert expectation_maximization(found_NK)[0] > 0.99


def test_a_class_that_a_source_lacks_and_constant_features_have_a_density() -> None:
    part = classes(100, 0.0, 1)
    constant = torch.cat([part.features_ND, torch.ones(100, 1)], dim=1)
    one_class = Featured(
        constant[part.targets_N == 0], torch.zeros_like(part.targets_N)[part.targets_N == 0]
    )
    found_NK = log_densities(
        [one_class, Featured(constant, part.targets_N)],
        Featured(constant, part.targets_N),
        SingleLabel(2),
    )
    assert bool(found_NK.isfinite().all())


def test_exponentiated_gradient_and_expectation_maximization_agree() -> None:
    sources = [classes(500, 0.0, 1), classes(500, 1.5, 2)]
    found_NK = log_densities(sources, classes(400, 0.5, 3), SingleLabel(2))
    each_1N = torch.full((1, len(found_NK)), 1 / len(found_NK), dtype=torch.float64)
    densities_NK = (found_NK - found_NK.max(dim=1, keepdim=True).values).exp()
    fitted_1K = exponentiated_gradient(
        lambda weights_RK: -(weights_RK @ densities_NK.T).log(), each_1N, torch.zeros(1), 2, 300
    )
    em_K = expectation_maximization(found_NK)
    assert fitted_1K[0].tolist() == pytest.approx(em_K.tolist(), abs=0.01)
    assert 0.1 < em_K[1] < 0.9


@pytest.mark.parametrize(
    ("gains", "weights", "finding"),
    [
        ([1.0, 1.1, 0.9, 1.0], (0.6, 0.4), Finding.BETTER),
        ([1.0, 1.1, 0.9, 1.0], (0.99, 0.01), Finding.ALONE),
        ([1.0, -1.1, 0.9, -1.0], (0.6, 0.4), Finding.NOT_BETTER),
        ([0.0, 0.0, 0.0, 0.0], (0.5, 0.5), Finding.NOT_BETTER),
    ],
)
def test_verdict(gains: list[float], weights: tuple[float, float], finding: Finding) -> None:
    gains_N, sure_N = torch.tensor(gains), torch.ones(4)
    assert judge(gains_N, sure_N, shares(*weights), ("a", "b")).finding is finding


def test_a_gain_that_other_learners_do_not_show_is_none() -> None:
    gains_N, crossed_N = torch.tensor([1.0, 1.1, 0.9]), torch.tensor([0.5, -0.5, 0.1])
    verdict = judge(gains_N, crossed_N, shares(0.6, 0.4), ("a", "b"))
    assert verdict.finding is Finding.NOT_BETTER


def test_verdict_has_the_gain_and_its_interval() -> None:
    # A mean of 2 with a deviation of 2: 1.96 x 2 / sqrt(4).
    verdict = judge(torch.tensor([0.0, 2.0, 2.0, 4.0]), torch.ones(4), shares(0.6, 0.4), ("a", "b"))
    assert verdict.gain == 2.0
    assert verdict.high - verdict.gain == pytest.approx(1.96 * (8 / 3) ** 0.5 / 2)


def test_verdict_of_one_source_names_it() -> None:
    verdict = judge(torch.zeros(1), torch.zeros(1), shares(1.0), ("web",))
    assert verdict.finding is Finding.NOTHING_TO_MIX
    assert str(verdict) == "There is one source, web, so there is nothing to mix."
