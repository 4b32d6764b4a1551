import pytest
import torch

from lipt.core.mixture.densities import Featured, expectation_maximization, log_densities
from lipt.core.pretraining.simplex import exponentiated_gradient
from lipt.data.targets.values import Regression, SingleLabel


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
