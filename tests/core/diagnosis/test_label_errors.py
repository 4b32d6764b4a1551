import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.errors import SignalsError
from lipt.common.targets.kinds import TargetKind
from lipt.core.diagnosis.label_errors import (
    LabelErrors,
    NoiseRate,
    NoiseRates,
    find_label_errors,
    fit_of_targets,
    noise_rates,
    trust_after,
)
from lipt.core.signals.signals import Signals

CHANCES_NC = torch.tensor(
    [
        [0.9, 0.1, 0.0],  # labelled 0
        [0.5, 0.5, 0.0],  # labelled 0
        [0.2, 0.8, 0.0],  # labelled 0: taken for 1
        [0.4, 0.6, 0.0],  # labelled 1
        [0.3, 0.7, 0.0],  # labelled 1
        [0.52, 0.48, 0.0],  # labelled 1: taken for 0, not surely
    ]
)
LABELS_N = torch.tensor([0, 0, 0, 1, 1, 1])


def test_thresholds_suspects_and_quality_by_hand() -> None:
    found = find_label_errors(signals_of(CHANCES_NC, LABELS_N))
    # (0.9 + 0.5 + 0.2) / 3, (0.6 + 0.7 + 0.48) / 3, and no example is labelled 2.
    expected = [1.6 / 3, 1.78 / 3, math.inf]
    assert found.thresholds_C.tolist() == pytest.approx(expected, rel=1e-6)
    assert found.suggested_N.tolist() == [0, 0, 1, 1, 1, 0]
    # 0.8 >= 0.593 for class 1, but 0.52 < 0.533 for class 0.
    assert found.suspects_N.nonzero().flatten().tolist() == [2]
    # Sure are 0 (0.9), 2 (0.8), 3 (0.6) and 4 (0.7).
    assert found.joint_CC.tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    own_and_other = [(0.9, 0.1), (0.5, 0.5), (0.2, 0.8), (0.6, 0.4), (0.7, 0.3), (0.48, 0.52)]
    expected = [own / (own + math.sqrt(other)) for own, other in own_and_other]
    assert found.quality_N.tolist() == pytest.approx(expected, rel=1e-5)


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


SIGNALS = Signals(
    errors_NC=torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, -1.0]]),
    features_ND=torch.zeros(3, 1),
    labels_N=torch.tensor([0, 2, 1]),
    kind=TargetKind.NUMBER,
)


def test_a_target_fits_the_less_the_further_off_it_is() -> None:
    found = fit_of_targets(SIGNALS, 3)
    # Residuals of 0, 5 and 1.
    assert found.quality_N.tolist() == pytest.approx([1.0, 1 / 6, 1 / 2])
    assert not found.suspects_N.any()
    assert found.suggested_N.tolist() == SIGNALS.labels_N.tolist()
    assert found.noise.overall.rate == 0.0
    assert len(found.noise.per_class) == 3


def test_label_errors_are_of_classes_alone() -> None:
    with pytest.raises(SignalsError, match="label errors cannot be looked for in regression data"):
        find_label_errors(SIGNALS)


def judged(quality: list[float], *, rate: float, low: float, num_classes: int = 2) -> LabelErrors:
    """What a first look has found, as far as the second one asks."""
    none = torch.zeros(len(quality), dtype=torch.int64)
    noise = NoiseRates(NoiseRate(rate, low, 1.0), ())
    thresholds_C = torch.zeros(num_classes, dtype=torch.float64)
    joint_CC = torch.zeros(num_classes, num_classes, dtype=torch.int64)
    return LabelErrors(torch.tensor(quality), none, none.bool(), thresholds_C, joint_CC, noise)


def test_the_least_trusted_of_each_class_do_not_teach_as_many_as_are_wrong() -> None:
    labels_N = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    # Class 1 is judged worse as a whole: it keeps its teachers all the same.
    found = judged([0.9, 0.2, 0.8, 0.7, 0.1, 0.05, 0.15, 0.12], rate=0.25, low=0.1)
    trust_N = trust_after(found, labels_N)
    assert trust_N is not None
    assert (trust_N < 1).nonzero().flatten().tolist() == [1, 5]
    assert trust_N.min() > 0


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_there_is_no_second_look_where_it_is_not_sure_that_labels_are_wrong(rate: float) -> None:
    assert trust_after(judged([0.1, 0.9], rate=rate, low=0.01), torch.tensor([0, 1])) is None


def test_both_looks_say_how_good_a_label_is_and_the_second_what_it_should_be() -> None:
    labels_N = torch.tensor([0, 1])
    first = signals_of(torch.tensor([[0.6, 0.4], [0.3, 0.7]]), labels_N)
    second = signals_of(torch.tensor([[0.2, 0.8], [0.1, 0.9]]), labels_N)
    one, other = find_label_errors(first), find_label_errors(second)
    both = find_label_errors(replace(first, second_errors_NC=second.errors_NC))
    assert one.suggested_N.tolist() == [0, 1]
    assert both.suggested_N.tolist() == [1, 1]
    torch.testing.assert_close(both.quality_N, (one.quality_N * other.quality_N).sqrt())
    # The second head has not learned from the labels that would have to be counted.
    assert both.noise == one.noise


def signals_of(chances_NC: Tensor, labels_N: Tensor) -> Signals:
    errors_NC = chances_NC.float() - functional.one_hot(labels_N, chances_NC.shape[1])
    return Signals(errors_NC, torch.empty(len(labels_N), 0), labels_N)
