from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.targets.kinds import TargetKind
from lipt.core.selection.select import find_strategy, select
from lipt.core.selection.selection import Selection
from lipt.core.selection.strategies.auto import Evidence, auto_strata, make_plan
from lipt.core.signals.signals import Signals, labels_only

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
    return Signals(errors_NC, features_ND, labels_N, pictures_N=every_N)


def chosen(signals: Signals, budget: int, strategy: str = "auto", seed: int = 5) -> Selection:
    return select(find_strategy(strategy), signals, budget, balanced=True, seed=seed)


def counts(signals: Signals, indices_K: Tensor) -> list[int]:
    return signals.labels_N[indices_K].bincount(minlength=NUM_CLASSES).tolist()


def test_without_a_known_gain_auto_is_class_balanced_random() -> None:
    signals = made_up()
    plain = chosen(signals, 800, "uniform_per_class")
    found = chosen(signals, 800)
    assert torch.equal(found.indices_K, plain.indices_K)
    assert found.findings["method"] == "random"
    assert found.findings["excluded"]["count"] == 0


@pytest.mark.parametrize("budget", [8, 200])
def test_auto_excludes_wrong_labels(budget: int) -> None:
    signals = made_up(wrong=100)
    found = chosen(signals, budget)
    true_K = found.indices_K // PER_CLASS
    assert torch.equal(true_K, signals.labels_N[found.indices_K])
    assert found.findings["noise"]["low"] > 0.1
    assert found.findings["excluded"]["count"] >= 400


def test_findings_name_the_lowest_quality_labels_up_to_a_limit() -> None:
    signals = made_up(wrong=100)
    excluded = chosen(signals, 20).findings["excluded"]
    ids = excluded["lowest_quality_ids"]
    # 1% kept: half as many again as the head gets wrong.
    assert excluded["count"] == len(ids) == 600
    assert [row % PER_CLASS < 100 for row in ids] == [True] * 400 + [False] * 200


def with_copies(signals: Signals, share: float) -> Signals:
    pictures_N = torch.arange(len(signals.labels_N))
    for label in range(NUM_CLASSES):
        start = label * PER_CLASS
        pictures_N[start : start + round(share * PER_CLASS)] = start
    return replace(signals, pictures_N=pictures_N)


@pytest.mark.parametrize("budget", [40, 800])
def test_at_most_one_of_many_near_duplicates_is_chosen(budget: int) -> None:
    signals = with_copies(made_up(), 0.5)
    found = chosen(signals, budget)
    assert counts(signals, found.indices_K) == [budget // NUM_CLASSES] * NUM_CLASSES
    pictures = signals.pictures_N
    assert pictures is not None
    assert len(pictures[found.indices_K].unique()) == budget
    assert found.findings["copies"] == pytest.approx(0.498)
    assert "one of each picture, as 49.8% are near-duplicates" in found.findings["words"][0]


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
    signals = replace(signals, pictures_N=torch.arange(len(signals)))
    found = chosen(signals, 400)
    shares = counts(signals, found.indices_K)
    assert sum(shares) == 400
    assert shares[0] < 50 < min(shares[1:])
    assert max(shares[1:]) - min(shares[1:]) <= 1


# As on cifar10-jpeg: a head that gets 40% and 20% of two classes wrong, and labels that are right.
CLEAN = Evidence(
    fraction=0.1,
    per_class=10,
    num_features=1000,
    errors_C=(0.4, 0.2),
    full_C=(1.0, 1.0),
    noise_rate=0.0,
    noise_low=0.0,
    noise_C=(0.0, 0.0),
    training="short",
)


NOISY = {"noise_rate": 0.2, "noise_low": 0.1, "noise_C": (0.2, 0.1)}
TEN = {"full_C": (1.0,) * 10, "errors_C": (0.4,) * 10, "noise_C": (0.35,) * 10}


@pytest.mark.parametrize(
    ("changes", "method", "excluded_C"),
    [
        # Few: half as many again as the head gets wrong; half-way to the end of the gain; none.
        ({"fraction": 0.05}, "facility_location", (0.6, 0.3)),
        ({}, "facility_location", (0.4, 0.2)),
        *(({"fraction": fraction}, "random", (0.0, 0.0)) for fraction in (0.2, 0.3, 1.0)),
        ({"fraction": 0.01, "training": "converged"}, "facility_location", (0.6, 0.3)),
        ({"fraction": 0.055, "training": "converged"}, "facility_location", (0.3, 0.15)),
        # Facility location never looks at the least trusted.
        ({"fraction": 0.099, "training": "converged"}, "facility_location", (0.16, 0.08)),
        ({"training": "converged"}, "random", (0.0, 0.0)),
        # 1.5 for each wrong label, of a class and of all, and no more than the head gets wrong.
        ({**NOISY, "training": "converged"}, "facility_location", (0.3, 0.2)),
        ({**NOISY, "fraction": 0.2, "training": "converged"}, "random", (0.3, 0.2)),
        ({**NOISY, "fraction": 0.5, "errors_C": (0.45, 0.15)}, "random", (0.3, 0.15)),
        ({"fraction": 0.5, "noise_low": 0.01, "noise_C": (0.2, 0.0)}, "random", (0.0, 0.0)),
        # A class keeps something to choose from.
        ({"fraction": 0.01, "errors_C": (0.6, 0.1)}, "facility_location", (0.7, 0.15)),
        # A head that guesses, one that wrong labels leave little to be right about, one class.
        ({"errors_C": (0.5, 0.44)}, "random", (0.0, 0.0)),
        ({**TEN, "noise_rate": 0.36, "noise_low": 0.35}, "facility_location", (0.4,) * 10),
        ({"errors_C": (0.0, 0.0), "full_C": (1.0, 0.0)}, "random", (0.0, 0.0)),
        # A head that is seldom wrong, but for a class that it does not know; a few copies.
        ({"errors_C": (0.08, 0.02), "fraction": 0.15}, "facility_location", (0.08, 0.02)),
        ({"errors_C": (0.08, 0.02), "fraction": 0.5}, "random", (0.08, 0.02)),
        ({"errors_C": (0.01, 0.15), "fraction": 0.5}, "random", (0.01, 0.0)),
        ({"copies": 0.1}, "facility_location", (0.4, 0.2)),
        # Few by their share, and half-way to many or many by their number.
        ({"fraction": 0.05, "per_class": 625}, "facility_location", (0.3, 0.15)),
        ({"fraction": 0.05, "per_class": 1000}, "random", (0.0, 0.0)),
        (
            {"fraction": 0.01, "per_class": 110, "training": "converged"},
            "facility_location",
            (0.3, 0.15),
        ),
        (
            {"fraction": 0.01, "per_class": 200, "training": "converged"},
            "random",
            (0.0, 0.0),
        ),
        ({"errors_C": (0.08, 0.02), "per_class": 1000}, "random", (0.0, 0.0)),
        ({**NOISY, "per_class": 999, "training": "converged"}, "facility_location", (0.3, 0.2)),
        ({**NOISY, "per_class": 1000, "training": "converged"}, "random", (0.3, 0.2)),
        # The head misses 3/7 of what is possible, a tenth does not count: 0.75 and 1 per feature.
        ({**NOISY, "per_class": 210, "num_features": 92}, "facility_location", (0.2, 0.1)),
        ({**NOISY, "per_class": 210, "num_features": 69}, "random", (0.0, 0.0)),
    ],
)
def test_the_plan_follows_from_the_evidence(
    changes: dict[str, Any], method: str, excluded_C: tuple[float, ...]
) -> None:
    plan = make_plan(replace(CLEAN, **changes))
    assert plan.method == method
    assert plan.excluded_C == pytest.approx(excluded_C)
    nothing = ("no gain is known", "too few", "knows better")
    assert any(words in plan.reason for words in nothing) != any(excluded_C)
    assert ("with the lowest label quality" in plan.reason) == any(excluded_C)


def test_a_mistyped_label_is_no_class_in_the_evidence() -> None:
    plain = make_plan(replace(CLEAN, errors_C=(0.08, 0.02)))
    # The third class has one example, which the head cannot know.
    typed = replace(CLEAN, errors_C=(0.08, 0.02, 1.0), full_C=(1.0, 1.0, 0.05), noise_C=(0.0,) * 3)
    assert typed.accuracy == pytest.approx(1 - (0.08 + 0.02 + 0.05) / 2.05)
    plan = make_plan(typed)
    assert (plan.method, plan.excluded_C[:2]) == (plain.method, plain.excluded_C)


def test_a_mistyped_label_leaves_the_other_classes_their_examples() -> None:
    signals = made_up()
    labels_N = signals.labels_N.clone()
    labels_N[0] = NUM_CLASSES
    errors_NC = functional.pad(signals.errors_NC, (0, 1))
    errors_NC[0, 0] += 1
    errors_NC[0, NUM_CLASSES] = -1
    typed = replace(signals, labels_N=labels_N, errors_NC=errors_NC)
    found = chosen(typed, 200)
    assert found.findings["method"] == chosen(signals, 200).findings["method"]
    # It stays, and takes no more than itself.
    shares = labels_N[found.indices_K].bincount(minlength=NUM_CLASSES + 1).tolist()
    assert sorted(shares) == [1, 49, 50, 50, 50]
    assert shares[NUM_CLASSES] == 1


def test_only_surely_wrong_labels_reduce_a_class_s_share() -> None:
    typical = make_plan(replace(CLEAN, fraction=0.01))
    assert any(typical.excluded_C)
    assert typical.wrong_C == (0.0, 0.0)
    noisy = make_plan(
        replace(CLEAN, errors_C=(0.5, 0.4), noise_rate=0.3, noise_low=0.2, noise_C=(0.2, 0.3))
    )
    # Half as many again as are wrong in all, and no more than the head contradicts.
    assert noisy.wrong_C == pytest.approx((0.45, 0.4))


LABELS = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)


def signals_of(pictures: torch.Tensor | None = None) -> Signals:
    signals = labels_only(LABELS, TargetKind.NUMBER)
    return replace(signals, pictures_N=torch.arange(100) if pictures is None else pictures)


def counts_of_strata(chosen: Selection) -> list[int]:
    return LABELS[chosen.indices_K].bincount(minlength=3).tolist()


def test_strata_get_equal_shares_or_their_own() -> None:
    assert counts_of_strata(auto_strata(signals_of(), 30, balanced=True, seed=0)) == [10, 10, 10]
    assert counts_of_strata(auto_strata(signals_of(), 30, balanced=False, seed=0)) == [18, 9, 3]
    random = find_strategy("uniform_per_class")
    chosen = auto_strata(signals_of(), 30, balanced=True, seed=5)
    expected = select(random, signals_of(), 30, balanced=True, seed=5)
    assert sorted(chosen.indices_K.tolist()) == expected.indices_K.tolist()
    assert chosen.findings["words"] == [
        "the targets are regression: no gain over random is known of any choice",
        "0.0% of the examples are near-duplicates of others",
        "random in equal shares of the strata",
    ]


def test_duplicates_are_chosen_only_if_nothing_else_is_left() -> None:
    # The first stratum's 60 examples are 6 pictures.
    pictures = torch.arange(100)
    pictures[:60] %= 6
    chosen = auto_strata(signals_of(pictures), 30, balanced=True, seed=0)
    assert counts_of_strata(chosen) == [6, 14, 10]
    assert set(chosen.indices_K[chosen.indices_K < 60].tolist()) == set(range(6))
    assert chosen.findings["excluded"] == {"count": 54}
    # 46 are no copies.
    assert counts_of_strata(auto_strata(signals_of(pictures), 47, balanced=True, seed=0)) == [
        19,
        18,
        10,
    ]
