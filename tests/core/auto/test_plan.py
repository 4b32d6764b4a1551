from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from lipt.core.auto.evidence import Evidence, gather
from lipt.core.auto.plan import Reason, learners_can_matter, make_plan
from lipt.core.diagnosis.label_errors import find_label_errors
from lipt.core.signals.signals import Signals
from tests.core.auto.clean import CLEAN

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
        # Without its copies a 50th of the data is a 25th: two thirds of the way to none.
        (
            {"copies": 0.5, "fraction": 0.02, "training": "converged"},
            "facility_location",
            (0.4, 0.2),
        ),
        # Few by their share, and half-way to many or many by their number.
        ({"fraction": 0.05, "per_class": 625}, "facility_location", (0.3, 0.15)),
        ({"fraction": 0.05, "per_class": 1000}, "random", (0.0, 0.0)),
        (
            {"fraction": 0.01, "per_class": 110, "training": "converged"},
            "facility_location",
            (0.3, 0.15),
        ),
        ({"fraction": 0.01, "per_class": 200, "training": "converged"}, "random", (0.0, 0.0)),
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
    assert (plan.reason in (Reason.FEW, Reason.EXCLUSION)) == any(excluded_C)


def test_a_mistyped_label_is_no_class_in_the_evidence() -> None:
    plain = make_plan(replace(CLEAN, errors_C=(0.08, 0.02)))
    # The third class has one example, which the head cannot know.
    typed = replace(CLEAN, errors_C=(0.08, 0.02, 1.0), full_C=(1.0, 1.0, 0.05), noise_C=(0.0,) * 3)
    assert typed.accuracy == pytest.approx(1 - (0.08 + 0.02 + 0.05) / 2.05)
    plan = make_plan(typed)
    assert (plan.method, plan.excluded_C[:2]) == (plain.method, plain.excluded_C)


def test_only_surely_wrong_labels_reduce_a_class_s_share() -> None:
    typical = make_plan(replace(CLEAN, fraction=0.01))
    assert any(typical.excluded_C)
    assert typical.wrong_C == (0.0, 0.0)
    noisy = make_plan(
        replace(CLEAN, errors_C=(0.5, 0.4), noise_rate=0.3, noise_low=0.2, noise_C=(0.2, 0.3))
    )
    # Half as many again as are wrong in all, and no more than the head contradicts.
    assert noisy.wrong_C == pytest.approx((0.45, 0.4))


def test_a_plan_of_half_of_clean_data_stays_random_with_any_head() -> None:
    half = {"fraction": 0.5, "per_class": 300, "num_features": 2000, "errors_C": (0.3, 0.3)}
    evidence = replace(CLEAN, **half, training="converged")
    assert not learners_can_matter(evidence, 0.5)
    assert learners_can_matter(replace(evidence, fraction=0.01, per_class=5), 0.5)
    # Labels that are surely wrong are excluded at any fraction, which a better head does better.
    assert learners_can_matter(replace(evidence, noise_rate=0.2, noise_low=0.1), 0.5)


def test_learners_matter_where_a_better_head_is_no_longer_weak() -> None:
    weak = replace(CLEAN, fraction=0.01, errors_C=(0.45, 0.45))
    assert make_plan(weak).reason is Reason.WEAK_HEAD
    # It is right on 55% of two classes; without half of the errors, on 78%.
    assert learners_can_matter(weak, 0.5)
    assert not learners_can_matter(weak, 0.0)


def test_a_class_of_one_example_that_the_head_misses_is_all_wrong() -> None:
    labels_N = torch.tensor([0, 0, 1, 1, 2])
    called_N = torch.tensor([0, 0, 1, 1, 0])
    probabilities_NC = 0.9 * functional.one_hot(called_N, 3) + 0.1 / 3
    errors_NC = probabilities_NC - functional.one_hot(labels_N, 3)
    signals = Signals(errors_NC, torch.zeros(5, 4), labels_N)
    evidence = gather(signals, find_label_errors(signals), 2, "short")
    assert evidence.errors_C == (0.0, 0.0, 1.0)
    assert (evidence.fraction, evidence.num_features) == (0.4, 4)


def test_means_over_classes_are_taken_once_however_many_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, mean = list[int](), Evidence.mean

    def counted(evidence: Evidence, values_C: tuple[float, ...]) -> float:
        calls.append(len(values_C))
        return mean(evidence, values_C)

    monkeypatch.setattr(Evidence, "mean", counted)
    many = {"full_C": (1.0,) * 500, "errors_C": (0.05,) * 500, "noise_C": (0.02,) * 500}
    plan = make_plan(replace(CLEAN, **many, noise_rate=0.02, noise_low=0.02))
    assert all(plan.excluded_C)
    assert calls == [500, 500]
