from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.core.diagnosis.label_errors import find_label_errors, sure_suspects
from lipt.core.signals.signals import labels_only
from tests.core.diagnosis.chances import drawn_chances, signals_of

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


def test_thresholds_are_mean_chances_of_the_given_labels() -> None:
    found = find_label_errors(signals_of(CHANCES_NC, LABELS_N))
    # (0.9 + 0.5 + 0.2) / 3, (0.6 + 0.7 + 0.48) / 3, and no example is labelled 2.
    expected = [1.6 / 3, 1.78 / 3, math.inf]
    assert found.thresholds_C.tolist() == pytest.approx(expected, rel=1e-6)


def test_suspect_is_who_is_surely_taken_for_another_class() -> None:
    found = find_label_errors(signals_of(CHANCES_NC, LABELS_N))
    assert found.suggested_N.tolist() == [0, 0, 1, 1, 1, 0]
    # 0.8 >= 0.593 for class 1, but 0.52 < 0.533 for class 0.
    assert found.suspects_N.tolist() == [False, False, True, False, False, False]
    # Sure are 0 (0.9), 2 (0.8), 3 (0.6) and 4 (0.7).
    assert found.joint_CC.tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]


def test_quality_is_the_labels_chance_beside_the_root_of_the_best_other() -> None:
    found = find_label_errors(signals_of(CHANCES_NC, LABELS_N))
    expected = [
        own / (own + math.sqrt(other))
        for own, other in [(0.9, 0.1), (0.5, 0.5), (0.2, 0.8), (0.6, 0.4), (0.7, 0.3), (0.48, 0.52)]
    ]
    assert found.quality_N.tolist() == pytest.approx(expected, rel=1e-5)


def test_worst_labels_come_first_and_ties_keep_their_order() -> None:
    chances_NC = torch.tensor([[0.1, 0.9]] * 2 + [[0.05, 0.95]] + [[0.9, 0.1]] * 6 + [[0.3, 0.7]])
    labels_N = torch.tensor([0] * 9 + [1])
    found = find_label_errors(signals_of(chances_NC, labels_N))
    assert found.ranked().tolist() == [2, 0, 1]


def test_a_class_without_examples_is_never_suggested() -> None:
    chances_NC = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.1, 0.6]])
    found = find_label_errors(signals_of(chances_NC, torch.tensor([0, 1])))
    assert found.suggested_N.tolist() == [1, 0]
    assert found.noise.per_class[2].high == 0.0


def test_one_class_has_no_suspects() -> None:
    found = find_label_errors(signals_of(torch.ones(5, 1), torch.zeros(5, dtype=torch.int64)))
    assert not found.suspects_N.any()
    assert found.quality_N.tolist() == [1.0] * 5
    assert sure_suspects(found).tolist() == []


def test_one_example_is_judged() -> None:
    found = find_label_errors(signals_of(torch.tensor([[0.25, 0.75]]), torch.tensor([1])))
    assert found.suspects_N.tolist() == [False]
    assert found.thresholds_C.tolist() == [math.inf, 0.75]


def test_blocks_do_not_change_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    truth_N, labels_N = noisy(0.3)
    generator = torch.Generator().manual_seed(1)
    signals = signals_of(drawn_chances(truth_N, 5, right=0.8, generator=generator), labels_N)
    whole = find_label_errors(signals)
    monkeypatch.setattr(
        "lipt.core.diagnosis.label_errors.row_blocks",
        lambda count, _: (slice(start, start + 7) for start in range(0, count, 7)),
    )
    parts = find_label_errors(signals)
    assert torch.equal(whole.quality_N, parts.quality_N)
    assert torch.equal(whole.suspects_N, parts.suspects_N)
    assert whole.noise == parts.noise


def test_sure_suspects_are_mostly_wrong_and_none_where_nothing_is() -> None:
    for rate in (0.0, 0.3):
        truth_N, labels_N = noisy(rate)
        generator = torch.Generator().manual_seed(1)
        chances_NC = drawn_chances(truth_N, 5, right=0.8, generator=generator)
        found = find_label_errors(signals_of(chances_NC, labels_N))
        sure = sure_suspects(found)
        assert len(sure) == int(0.5 * found.noise.overall.low * len(labels_N))
        assert bool(found.suspects_N[sure].all())
        if rate:
            assert float((labels_N != truth_N)[sure].double().mean()) > 0.75
            assert len(sure) > 0.1 * len(labels_N)
        else:
            assert not len(sure)
            assert found.suspects_N.any()


def test_signals_without_errors_are_refused() -> None:
    with pytest.raises(SignalsError, match=r"errors of 3 examples in 0 classes\. Compute"):
        find_label_errors(labels_only(torch.zeros(3, dtype=torch.int64)))


def noisy(rate: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    truth_N = torch.randint(5, (4000,), generator=generator)
    moved_N = torch.rand(4000, generator=generator) < rate
    by_N = torch.randint(1, 5, (4000,), generator=generator)
    return truth_N, torch.where(moved_N, (truth_N + by_N) % 5, truth_N)
