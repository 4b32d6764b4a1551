from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from lipt.core.auto.findings import PlanFindings, StrataFindings
from lipt.core.auto.plan import Method
from lipt.core.selection.select import find_strategy, select
from lipt.core.selection.selection import Selection
from lipt.core.selection.strategies.auto import auto_strata, effective_counts
from lipt.core.signals.signals import Signals, labels_only
from lipt.core.signals.views import NearDuplicates
from lipt.data.targets.kinds import TargetKind

NUM_CLASSES, PER_CLASS = 4, 500


def made_up(*, wrong: int = 0, trust: float = 0.9, seed: int = 0) -> Signals:
    """Four classes around four centers, and a head that knows the true ones.

    Of each class, the first `wrong` labels are those of the next one.
    """
    generator = torch.Generator().manual_seed(seed)
    true_N = torch.arange(NUM_CLASSES).repeat_interleave(PER_CLASS)
    features_ND = functional.one_hot(true_N, NUM_CLASSES).float() * 3
    features_ND = features_ND + torch.randn(features_ND.shape, generator=generator)
    labels_N = true_N.clone()
    for label in range(NUM_CLASSES):
        rows = slice(label * PER_CLASS, label * PER_CLASS + wrong)
        labels_N[rows] = (label + 1) % NUM_CLASSES
    own_N = trust + 0.05 * torch.rand(len(true_N), generator=generator)
    chances_NC = ((1 - own_N) / (NUM_CLASSES - 1))[:, None].repeat(1, NUM_CLASSES)
    chances_NC[torch.arange(len(true_N)), true_N] = own_N
    errors_NC = chances_NC - functional.one_hot(labels_N, NUM_CLASSES)
    every_N = torch.arange(len(labels_N))
    return Signals(errors_NC, features_ND, labels_N, duplicate_group_N=every_N)


def chosen(signals: Signals, budget: int, strategy: str = "auto", seed: int = 5) -> Selection:
    return select(find_strategy(strategy), signals, budget, balanced=True, seed=seed)


def findings_of(chosen: Selection) -> PlanFindings:
    assert isinstance(chosen.findings, PlanFindings)
    return chosen.findings


def test_without_a_known_gain_auto_is_class_balanced_random() -> None:
    signals = made_up()
    plain = chosen(signals, 800, "uniform_per_class")
    found = chosen(signals, 800)
    assert torch.equal(found.indices_K, plain.indices_K)
    assert findings_of(found).plan.method is Method.RANDOM
    assert len(findings_of(found).excluded) == 0


@pytest.mark.parametrize("budget", [8, 200])
def test_auto_excludes_wrong_labels(budget: int) -> None:
    signals = made_up(wrong=100)
    found = chosen(signals, budget)
    true_K = found.indices_K // PER_CLASS
    assert torch.equal(true_K, signals.labels_N[found.indices_K])
    assert findings_of(found).noise.low > 0.1
    assert len(findings_of(found).excluded) >= 400


def test_findings_name_the_lowest_quality_labels_up_to_a_limit() -> None:
    signals = made_up(wrong=100)
    excluded = findings_of(chosen(signals, 20)).to_json()["excluded"]
    ids = excluded["lowest_quality_ids"]
    # 1% kept: half as many again as the head gets wrong.
    assert excluded["count"] == len(ids) == 600
    assert [row % PER_CLASS < 100 for row in ids] == [True] * 400 + [False] * 200


def with_copies(signals: Signals, share: float) -> Signals:
    duplicate_group_N = torch.arange(len(signals.labels_N))
    for label in range(NUM_CLASSES):
        start = label * PER_CLASS
        duplicate_group_N[start : start + round(share * PER_CLASS)] = start
    return replace(signals, duplicate_group_N=duplicate_group_N)


@pytest.mark.parametrize("budget", [40, 800])
def test_at_most_one_of_many_near_duplicates_is_chosen(budget: int) -> None:
    signals = with_copies(made_up(), 0.5)
    found = chosen(signals, budget)
    counts = signals.labels_N[found.indices_K].bincount()
    assert counts.tolist() == [budget // NUM_CLASSES] * NUM_CLASSES
    pictures = signals.duplicate_group_N
    assert pictures is not None
    assert len(pictures[found.indices_K].unique()) == budget
    assert findings_of(found).evidence.copies == pytest.approx(0.498)
    assert findings_of(found).plan.excludes_duplicates


def test_of_near_duplicates_the_best_label_is_kept() -> None:
    signals = with_copies(made_up(wrong=100), 0.4)
    found = chosen(signals, 40)
    # The first half of each picture's copies are labelled wrong.
    assert not set(found.indices_K.tolist()) & {
        label * PER_CLASS + row for label in range(NUM_CLASSES) for row in range(100)
    }


def test_a_class_of_wrong_labels_loses_its_share() -> None:
    signals = made_up(wrong=100)
    # Of what says class 0 are 100 wrong and 20 right: a rare class among noisy ones.
    ids_N = torch.arange(len(signals))
    signals = signals.take(ids_N[(ids_N < 120) | (ids_N >= PER_CLASS)])
    signals = replace(signals, duplicate_group_N=torch.arange(len(signals)))
    found = chosen(signals, 400)
    shares = signals.labels_N[found.indices_K].bincount().tolist()
    assert sum(shares) == 400
    assert shares[0] < 50 < min(shares[1:])
    assert max(shares[1:]) - min(shares[1:]) <= 1


def test_a_mistyped_label_leaves_the_other_classes_their_examples() -> None:
    signals = made_up()
    labels_N = signals.labels_N.clone()
    labels_N[0] = NUM_CLASSES
    errors_NC = functional.pad(signals.errors_NC, (0, 1))
    errors_NC[0, 0] += 1
    errors_NC[0, NUM_CLASSES] = -1
    typed = replace(signals, labels_N=labels_N, errors_NC=errors_NC)
    found = chosen(typed, 200)
    assert findings_of(found).plan.method is findings_of(chosen(signals, 200)).plan.method
    # It stays, and takes no more than itself.
    shares = labels_N[found.indices_K].bincount(minlength=NUM_CLASSES + 1).tolist()
    assert sorted(shares) == [1, 49, 50, 50, 50]
    assert shares[NUM_CLASSES] == 1


LABELS = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)


def signals_of(pictures: torch.Tensor | None = None) -> Signals:
    signals = labels_only(LABELS, TargetKind.NUMBER)
    return replace(signals, duplicate_group_N=torch.arange(100) if pictures is None else pictures)


def of_strata(signals: Signals, budget: int, *, balanced: bool, seed: int) -> Selection:
    return auto_strata(signals, NearDuplicates.of(signals), budget, balanced=balanced, seed=seed)


def counts_of_strata(chosen: Selection) -> list[int]:
    return LABELS[chosen.indices_K].bincount(minlength=3).tolist()


def test_strata_get_equal_shares_or_their_own() -> None:
    assert counts_of_strata(of_strata(signals_of(), 30, balanced=False, seed=0)) == [18, 9, 3]
    chosen = of_strata(signals_of(), 30, balanced=True, seed=5)
    assert counts_of_strata(chosen) == [10, 10, 10]
    expected = select(find_strategy("uniform_per_class"), signals_of(), 30, balanced=True, seed=5)
    assert sorted(chosen.indices_K.tolist()) == expected.indices_K.tolist()
    assert chosen.findings == StrataFindings(TargetKind.NUMBER, True, copies=0.0, num_excluded=0)


def test_duplicates_are_chosen_only_if_nothing_else_is_left() -> None:
    # The first stratum's 60 examples are 6 pictures.
    pictures = torch.arange(100)
    pictures[:60] %= 6
    chosen = of_strata(signals_of(pictures), 30, balanced=True, seed=0)
    assert counts_of_strata(chosen) == [6, 14, 10]
    assert set(chosen.indices_K[chosen.indices_K < 60].tolist()) == set(range(6))
    assert isinstance(chosen.findings, StrataFindings)
    assert chosen.findings.num_excluded == 54
    # 46 are no copies.
    more = of_strata(signals_of(pictures), 47, balanced=True, seed=0)
    assert counts_of_strata(more) == [19, 18, 10]


@pytest.mark.parametrize(
    ("counts", "wrong", "budget", "expected"),
    [
        ([100, 20], [0.0, 0.0], 40, (100, 20)),
        ([100, 20], [0.25, 0.75], 40, (75, 5)),  # what is wrong does not count
        ([100, 20], [0.25, 0.75], 80, (75, 5)),
        ([100, 20], [0.25, 0.75], 100, (88, 13)),  # half of it does: 87.5 and 12.5
        ([100, 20], [0.25, 0.75], 120, (100, 20)),
        ([0, 4], [0.5, 0.5], 1, (0, 2)),
    ],
)
def test_quotas_ignore_wrong_labels_unless_needed(
    counts: list[int], wrong: list[float], budget: int, expected: tuple[int, ...]
) -> None:
    assert effective_counts(counts, wrong, budget) == expected
