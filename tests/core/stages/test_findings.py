import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from lipt.core.auto.findings import PlanFindings, StrataFindings
from lipt.core.auto.plan import Reason, make_plan
from lipt.core.diagnosis.noise import NoiseRate
from lipt.core.stages.findings import class_shift, plan_sentences
from lipt.data.targets.kinds import TargetKind
from tests.core.auto.clean import CLEAN


def data_of(*counts: int) -> Any:
    labels_N = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    names = tuple(f"class-{label}" for label in range(len(counts)))
    return cast("Any", SimpleNamespace(class_names=names, labels_N=labels_N))


def test_a_moved_class_is_named_with_weights_that_undo_it_and_the_flag_that_keeps_it() -> None:
    shares, sentences = class_shift(data_of(90, 10), torch.tensor([0] * 5 + [1] * 5))
    assert shares["data"] == pytest.approx([0.9, 0.1])
    assert shares["subset"] == pytest.approx([0.5, 0.5])
    # Of ten examples, five of weight 1.8 and five of 0.2: nine tenths and one tenth again.
    assert shares["weights_that_undo"] == pytest.approx([1.8, 0.2])
    assert sentences[0].startswith(
        "balanced: class class-1 is 10.0% of the data and 50.0% of the subset; balanced=False or "
    )


def test_small_shifts_are_not_named_and_absent_classes_weigh_nothing() -> None:
    shares, sentences = class_shift(data_of(60, 40, 0), torch.tensor([0] * 5 + [1] * 5))
    assert (shares["weights_that_undo"], sentences) == ([1.2, 0.8, 0.0], [])


FEW = replace(CLEAN, fraction=0.05, num_features=100)
NOISY = {"noise_rate": 0.2, "noise_low": 0.1, "noise_C": (0.2, 0.1)}


@pytest.mark.parametrize(
    ("changes", "reason", "sentence"),
    [
        (
            {},
            Reason.FEW,
            (
                "to keep 5% of the examples: of each class those that represent it, without the "
                "45% with the lowest label quality"
            ),
        ),
        (
            {**NOISY, "fraction": 0.5},
            Reason.EXCLUSION,
            (
                "to keep 50% of the examples: class-balanced random, without the 25% with the "
                "lowest label quality"
            ),
        ),
        ({"fraction": 0.5}, Reason.NO_GAIN, "no gain is known of choosing 50% of the examples"),
        ({"errors_C": (0.5, 0.44)}, Reason.WEAK_HEAD, "right on 53.0% of the labels that it has"),
        (
            {"errors_C": (0.5, 0.44), "num_features": math.inf},
            Reason.WEAK_HEAD,
            "pred_probs are right on 53.0% of the labels, too few to go by",
        ),
        (
            {"per_class": 400},
            Reason.BETTER_MODEL,
            "trained on 400 examples of a class probably knows better than a head on 100 features",
        ),
        (
            {"copies": 0.5, "fraction": 0.5},
            Reason.NO_GAIN,
            (
                "no gain is known of choosing 100% of the examples where labels are right and main "
                "training is short. A smaller fraction or soft labels may gain; one of each "
                "group, as 50.0% are near-duplicates of others"
            ),
        ),
    ],
)
def test_a_plan_s_sentence_states_its_reason(
    changes: dict[str, Any], reason: Reason, sentence: str
) -> None:
    evidence = replace(FEW, **changes)
    plan, noise = make_plan(evidence), NoiseRate(0.0, 0.0, 0.1)
    found = PlanFindings(evidence, plan, noise, torch.empty(0, dtype=torch.int64))
    first, *others = plan_sentences(found)
    assert plan.reason is reason
    assert sentence in first
    assert others[0] == "0.0% of the labels look wrong (95% interval 0.0% to 10.0%)"


def test_a_wide_interval_says_that_the_noise_is_unknown() -> None:
    noise, nothing = NoiseRate(0.1, 0.0, 0.5), torch.empty(0, dtype=torch.int64)
    said = plan_sentences(PlanFindings(FEW, make_plan(FEW), noise, nothing))[1]
    assert said.startswith("how many labels are wrong is unknown: 0.0% to 50.0%")


def test_a_draw_from_strata_names_its_shares() -> None:
    found = StrataFindings(TargetKind.NUMBER, balanced=True, copies=0.25, num_excluded=3)
    assert plan_sentences(found) == [
        "the targets are regression: no gain over random is known of any choice",
        "25.0% of the examples are near-duplicates of others",
        "random in equal shares of the strata",
        "one of each group",
    ]
