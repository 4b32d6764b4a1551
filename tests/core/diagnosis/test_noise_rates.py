from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lipt.core.diagnosis.noise_rates import NoiseRate, NoiseRates, noise_rates


def rates(
    labels: list[int], suggested: list[int], sureness: list[float], num_classes: int = 2
) -> NoiseRates:
    return noise_rates(
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


def test_nothing_that_disagrees_is_a_rate_of_zero_with_room_above() -> None:
    found = rates([0] * 30 + [1] * 30, [0] * 30 + [1] * 30, [0.5] * 60)
    # Twenty of each class agree: Wilson's upper end of 0 in 40 is 1.96^2 / (40 + 1.96^2).
    high = 3.8416 / 43.8416
    assert found.overall.high == pytest.approx(high)
    assert found.overall == NoiseRate(0.0, 0.0, found.overall.high)
    assert [rate.rate for rate in found.per_class] == [0.0, 0.0]


def test_only_the_surest_fifth_of_each_class_counts() -> None:
    # 300 of class 0: the surest 60 agree but for the first; all others disagree.
    sureness = [1 - 0.001 * rank for rank in range(300)]
    labels = [1, *[0] * 59, *[1] * 240]
    found = rates(labels, [0] * 300, sureness)
    # One in sixty, and it does not grow with the rank.
    assert found.overall.rate == pytest.approx(1 / 60)


def test_what_grows_with_the_rank_is_the_heads_own_error() -> None:
    # Of the 20 surest the later half disagrees; a line through them is below 0 at rank 0.
    found = rates([0] * 10 + [1] * 10, [0] * 20, [1 - 0.01 * rank for rank in range(20)])
    assert found.overall.rate == 0.0
    assert found.overall.low == 0.0


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4])
def test_noise_is_told_from_a_heads_own_errors(rate: float) -> None:
    labels_N, suggested_N, sureness_N = drawn(rate, fading=0.6)
    found = noise_rates(labels_N, suggested_N, sureness_N, 4)
    assert found.overall.low <= rate <= found.overall.high
    assert found.overall.high - found.overall.low < 0.1
    # Counting what disagrees would say far more.
    assert float((labels_N != suggested_N).double().mean()) > rate + 0.1
    for one in found.per_class:
        assert one.low - 0.05 <= rate <= one.high + 0.05


def test_classes_that_the_head_takes_for_others_less_often_count_for_as_many() -> None:
    # Class 0 is four times as large as class 1, and a half of class 1's labels is wrong.
    suggested = [0] * 800 + [1] * 200
    labels = [0] * 800 + [0, 1] * 100
    found = rates(labels, suggested, [0.5] * 1000)
    assert found.overall.rate == pytest.approx(0.1)
    # Of the 900 that are labelled 0, 100 are of class 1, and all labelled 1 are right.
    assert found.per_class[0].rate == pytest.approx(1 / 9)
    assert found.per_class[1].rate == 0.0


def test_a_class_of_which_none_is_sure_may_be_anything() -> None:
    # All labelled 1 are taken for 0, and are the least sure of 300.
    sureness = [1 - 0.001 * rank for rank in range(300)]
    found = rates([0] * 290 + [1] * 10, [0] * 300, sureness, num_classes=3)
    assert (found.per_class[1].low, found.per_class[1].high) == (0.0, 1.0)
    assert found.per_class[2] == NoiseRate(0.0, 0.0, 0.0)


def test_one_example_says_next_to_nothing() -> None:
    found = rates([0], [0], [0.9], num_classes=1)
    assert found.overall.high == pytest.approx(3.8416 / 4.8416)
    assert found.overall == NoiseRate(0.0, 0.0, found.overall.high)
