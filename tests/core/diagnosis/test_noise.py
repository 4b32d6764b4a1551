import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.diagnosis.noise import (
    NoiseRate,
    NoiseRates,
    mixture_rate,
    noise_rates,
    rates_of_surest,
)


def rates(
    labels: list[int], suggested: list[int], sureness: list[float], num_classes: int = 2
) -> NoiseRates:
    return rates_of_surest(
        torch.tensor(labels), torch.tensor(suggested), torch.tensor(sureness), num_classes
    )


def drawn(
    rate: float, *, fading: float, seed: int = 0, num_examples: int = 40_000, num_classes: int = 4
) -> tuple[Tensor, Tensor, Tensor]:
    """Labels of which `rate` are wrong, and a head whose errors grow by `fading` with its doubt."""
    generator = torch.Generator().manual_seed(seed)

    def other_than(classes_N: Tensor, chance_N: Tensor) -> Tensor:
        moved_N = torch.rand(num_examples, generator=generator) < chance_N
        by_N = torch.randint(1, num_classes, (num_examples,), generator=generator)
        return torch.where(moved_N, (classes_N + by_N) % num_classes, classes_N)

    truth_N = torch.randint(num_classes, (num_examples,), generator=generator)
    sureness_N = torch.rand(num_examples, generator=generator)
    labels_N = other_than(truth_N, torch.tensor(rate))
    return labels_N, other_than(truth_N, fading * (1 - sureness_N)), sureness_N


def test_a_head_s_own_errors_are_not_label_noise() -> None:
    found = rates([0] * 30 + [1] * 30, [0] * 30 + [1] * 30, [0.5] * 60)
    # Twenty of each class agree: Wilson's upper end of 0 in 40 is 1.96^2 / (40 + 1.96^2).
    high = 3.8416 / 43.8416
    assert found.overall.high == pytest.approx(high)
    assert found.overall == NoiseRate(0.0, 0.0, found.overall.high)
    assert [rate.rate for rate in found.per_class] == [0.0, 0.0]
    # Of the 20 surest the later half disagrees; a line through them is below 0 at rank 0.
    found = rates([0] * 10 + [1] * 10, [0] * 20, [1 - 0.01 * rank for rank in range(20)])
    assert found.overall.rate == 0.0
    assert found.overall.low == 0.0


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4])
def test_label_noise_differs_from_a_head_s_own_errors(rate: float) -> None:
    labels_N, suggested_N, sureness_N = drawn(rate, fading=0.6)
    found = rates_of_surest(labels_N, suggested_N, sureness_N, 4)
    assert found.overall.low <= rate <= found.overall.high
    assert found.overall.high - found.overall.low < 0.1
    # Counting what disagrees would say far more.
    assert float((labels_N != suggested_N).double().mean()) > rate + 0.1
    for one in found.per_class:
        assert one.low - 0.05 <= rate <= one.high + 0.05


def test_noise_rates_of_uneven_and_unconfident_classes() -> None:
    # Class 0 is four times as large as class 1, and a half of class 1's labels is wrong.
    suggested = [0] * 800 + [1] * 200
    labels = [0] * 800 + [0, 1] * 100
    found = rates(labels, suggested, [0.5] * 1000)
    assert found.overall.rate == pytest.approx(0.1)
    # Of the 900 that are labelled 0, 100 are of class 1, and all labelled 1 are right.
    assert found.per_class[0].rate == pytest.approx(1 / 9)
    assert found.per_class[1].rate == 0.0
    # All labelled 1 are taken for 0, and are the least sure of 300.
    sureness = [1 - 0.001 * rank for rank in range(300)]
    found = rates([0] * 290 + [1] * 10, [0] * 300, sureness, num_classes=3)
    assert (found.per_class[1].low, found.per_class[1].high) == (0.0, 1.0)
    assert found.per_class[2] == NoiseRate(0.0, 0.0, 0.0)


def overlapping(
    rate: float, *, distance: float, num_examples: int = 4000, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Errors of the best possible head, and labels of which `rate` are wrong.

    Three classes are normal around three points on a circle of this radius.
    """
    generator = torch.Generator().manual_seed(seed)
    angles_C = 2 * torch.pi * torch.arange(3) / 3
    centres_C2 = distance * torch.stack([angles_C.cos(), angles_C.sin()], dim=1)
    true_N = torch.randint(3, (num_examples,), generator=generator)
    points_N2 = centres_C2[true_N] + torch.randn(num_examples, 2, generator=generator)
    moved_N = torch.rand(num_examples, generator=generator) < rate
    shifts_N = torch.randint(1, 3, (num_examples,), generator=generator)
    labels_N = torch.where(moved_N, (true_N + shifts_N) % 3, true_N)
    # Normal classes of one radius: logits are inner products.
    probabilities_NC = (points_N2 @ centres_C2.T).softmax(dim=-1)
    return probabilities_NC - functional.one_hot(labels_N, 3), labels_N


@pytest.mark.parametrize("distance", [0.7, 1.5, 4.0])
@pytest.mark.parametrize("rate", [0.0, 0.06, 0.36])
def test_classes_that_overlap_are_no_label_noise(rate: float, distance: float) -> None:
    # The best possible head is right on 57%, 85% and 100% of the true classes.
    errors_NC, labels_N = overlapping(rate, distance=distance)
    found = mixture_rate(errors_NC, labels_N)
    assert found.rate == pytest.approx(rate, abs=0.05)
    assert found.low <= rate <= found.high
    assert found.high - found.low < 0.25


def surest_and_all(errors_NC: Tensor, labels_N: Tensor) -> tuple[NoiseRate, NoiseRates]:
    probabilities_NC = errors_NC + functional.one_hot(labels_N, errors_NC.shape[1])
    sureness_N, suggested_N = probabilities_NC.max(dim=-1)
    surest = rates_of_surest(labels_N, suggested_N, sureness_N, errors_NC.shape[1])
    return surest.overall, noise_rates(errors_NC, labels_N, suggested_N, sureness_N)


def test_an_unsure_head_gives_an_interval_in_place_of_an_estimate() -> None:
    errors_NC, labels_N = overlapping(0.06, distance=0.5)
    surest, found = surest_and_all(errors_NC, labels_N)
    # Of the surest fifth far more are wrong.
    assert surest.low > 0.06
    assert found.overall.low <= 0.06 <= found.overall.high
    assert found.overall.known_rate is None
    # The classes' intervals are as wide.
    assert all(one.low <= 0.06 <= one.high for one in found.per_class)


def test_a_head_that_nearly_guesses_claims_no_wrong_label() -> None:
    # Two classes 0.3 deviations apart, of which the best possible head names 58%.
    generator = torch.Generator().manual_seed(0)
    labels_N = torch.arange(2000) % 2
    points_N = 0.15 * (2 * labels_N - 1) + torch.randn(2000, generator=generator)
    probabilities_N2 = torch.stack([-0.15 * points_N, 0.15 * points_N], dim=1).softmax(dim=-1)
    errors_N2 = probabilities_N2 - functional.one_hot(labels_N, 2)
    surest, found = surest_and_all(errors_N2, labels_N)
    # Some samples look like one with wrong labels, by both estimates.
    assert min(surest.low, mixture_rate(errors_N2, labels_N).low) > 0.1
    assert found.overall.low == 0.0
    assert found.overall.known_rate is None


def test_a_sure_head_gives_an_estimate() -> None:
    _, found = surest_and_all(*overlapping(0.06, distance=4.0))
    assert found.overall.known_rate == pytest.approx(0.06, abs=0.02)


@pytest.mark.parametrize("num_examples", [1, 2, 5, 19])
def test_few_examples_say_nothing_about_noise(num_examples: int) -> None:
    _, found = surest_and_all(*overlapping(0.5, distance=4.0, num_examples=num_examples))
    assert found == NoiseRates(NoiseRate(0.0, 0.0, 1.0), (NoiseRate(0.0, 0.0, 1.0),) * 3)
    assert found.overall.known_rate is None


def test_rounding_leaves_no_share_outside_0_and_1() -> None:
    # Weights of 1 to 300 in a predicted class: their shares sum to 1 + 2e-16 for some.
    for count in range(20, 320):
        labels_N = torch.ones(count, dtype=torch.int64)
        suggested_N = torch.arange(count) % 3 * 2
        found = rates_of_surest(labels_N, suggested_N, torch.linspace(1, 0.4, count), 5)
        for one in (found.overall, *found.per_class):
            assert 0.0 <= one.low <= one.rate <= one.high <= 1.0
