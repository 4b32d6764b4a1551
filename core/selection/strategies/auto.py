"""Auto: look at the data first, and choose by what was found there.

Of examples that have no single class little is known: see `auto_strata`.

Leave-one-out outputs of a ridge head say which labels are trusted, and how many are wrong. What
to do about it depends on how many are kept, so that a plan is made (lipt.core.selection.
plan), and where no gain is known the plan is class-balanced random. Classes get equal shares
unless told otherwise.

Shapes: N examples, n of one class, C classes, K budget.
Source: the head's outputs are read as in Northcutt et al. 2021 (arXiv:1911.00068), the rest is
represented by facility location (Wei et al. 2015, ICML).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import torch
from torch import Tensor

from lipt.common.determinism import derive_seed
from lipt.common.targets.kinds import TargetKind
from lipt.core.diagnosis.label_errors import LabelErrors, find_label_errors
from lipt.core.selection.plan import Evidence, Plan, Training, make_plan
from lipt.core.selection.quotas import (
    class_quotas,
    proportional_quotas,
    worth_counting,
)
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.strategies.auto_strata import auto_strata
from lipt.core.selection.strategies.facility_location import facility_location
from lipt.core.selection.strategies.uniform import uniform
from lipt.core.selection.strategy import SIGNALS, Need, Strategy
from lipt.core.signals.signals import Signals, given

# A manifest is to stay a page that one can read; a diagnosis has all of them.
_MAX_NAMED = 1000


def auto(
    signals: Signals,
    budget: int,
    *,
    training: Annotated[
        Training, "main training to the end, or stopped early as in a search of hyper-parameters"
    ] = "converged",
    balanced: bool,
    seed: int,
) -> Selection:
    """Keep what is worth keeping by what is found in the data; the findings say what that is.

    Args:
        signals: of a head that did not learn from the example it judges.
        budget: K.
        training: what the subset is for.
        balanced: equal shares for the classes, as far as they reach, or those that they have.
        seed: of what is drawn.

    Raises:
        SignalsError: there are no errors to judge labels by.
    """
    if signals.kind is not TargetKind.CLASS:
        return auto_strata(signals, budget, balanced=balanced, seed=seed)
    labels_N = signals.labels_N
    found = find_label_errors(signals)
    copies_N = surplus_copies(found, given(signals.pictures_N, "near copies"))
    evidence = gather(found, labels_N, copies_N, budget, training)
    plan = make_plan(evidence)
    if not plan.leaves_out_copies:
        copies_N = torch.zeros_like(copies_N)
    parts, left_out = [], []
    for label, quota in enumerate(_quotas(labels_N, copies_N, plan, budget, balanced=balanced)):
        rows, num_own = _by_trust(torch.nonzero(labels_N == label).flatten(), found, copies_N)
        num_candidates = max(quota, round((1 - plan.left_out_C[label]) * num_own))
        left_out.append(rows[num_candidates:])
        if quota:
            candidates = rows[:num_candidates].sort().values
            # As for strategies that see one class at a time: plain random is that of them.
            class_seed = derive_seed(seed, "selection-class", label)
            parts.append(_choose(signals, candidates, quota, plan, class_seed))
    findings = _findings(evidence, plan, found, torch.cat(left_out))
    return replace(unweighted(torch.cat(parts)), findings=findings)


def surplus_copies(found: LabelErrors, pictures_N: Tensor) -> Tensor:
    """Which examples are near copies of one whose label is trusted more; N bool."""
    order_N = found.quality_N.argsort(descending=True, stable=True)
    order_N = order_N[pictures_N[order_N].argsort(stable=True)]
    sorted_N = pictures_N[order_N]
    copies_N = torch.zeros_like(found.suspects_N)
    copies_N[order_N[1:]] = sorted_N[1:] == sorted_N[:-1]
    return copies_N


def gather(
    found: LabelErrors, labels_N: Tensor, copies_N: Tensor, budget: int, training: Training
) -> Evidence:
    """What the plan is made of."""
    counts_C = labels_N.bincount(minlength=len(found.thresholds_C))
    wrong_C = labels_N[found.suggested_N != labels_N].bincount(minlength=len(counts_C))
    return Evidence(
        fraction=budget / len(labels_N),
        errors_C=tuple((wrong_C / counts_C.clamp(min=1)).tolist()),
        num_classes=int((counts_C > 0).sum()),
        noise_rate=found.noise.overall.rate,
        noise_low=found.noise.overall.low,
        noise_C=tuple(rate.rate for rate in found.noise.per_class),
        copies=float(copies_N.double().mean()),
        training=training,
    )


def _quotas(
    labels_N: Tensor, copies_N: Tensor, plan: Plan, budget: int, *, balanced: bool
) -> tuple[int, ...]:
    """Shares of the classes, of which copies and wrong labels are no part as far as may be."""
    num_classes = len(plan.wrong_C)
    counts_C = labels_N.bincount(minlength=num_classes).tolist()
    own_C = labels_N[~copies_N].bincount(minlength=num_classes).tolist()
    own_C = own_C if sum(own_C) >= budget else counts_C
    share = class_quotas if balanced else proportional_quotas
    return share(worth_counting(own_C, plan.wrong_C, budget), budget)


def _by_trust(rows: Tensor, found: LabelErrors, copies_N: Tensor) -> tuple[Tensor, int]:
    """A class's rows, the most trusted labels first and copies last, and how many are none."""
    # Of equally trusted ones the first.
    order = found.quality_N[rows].argsort(descending=True, stable=True)
    order = order[copies_N[rows[order]].int().argsort(stable=True)]
    return rows[order], int((~copies_N[rows]).sum())


def _choose(signals: Signals, candidates: Tensor, quota: int, plan: Plan, seed: int) -> Tensor:
    taken = signals.take(candidates)
    if plan.method == "random":
        chosen = uniform(taken, quota, seed=seed)
    else:
        chosen = facility_location(taken, quota, seed=seed, space="features")
    return candidates[chosen.indices_K.to(candidates.device)]


def _findings(
    evidence: Evidence, plan: Plan, found: LabelErrors, left_out: Tensor
) -> dict[str, Any]:
    """What was found, decided and left out, as JSON."""
    noise = found.noise.overall
    least_trusted = left_out[found.quality_N[left_out].argsort(stable=True)]
    interval = f"95% interval {noise.low:.1%} to {noise.high:.1%}"
    known = f"right on {evidence.accuracy:.1%} of the labels that it has not seen"
    words = [
        f"{noise.rate:.1%} of the labels look wrong ({interval})",
        f"a head on the proxy's features is {known}",
        f"{evidence.copies:.1%} of the examples are near copies of others",
        plan.why,
    ]
    return {
        "words": words,
        "method": plan.method,
        "noise": {"low": noise.low, "rate": noise.rate, "high": noise.high},
        "accuracy": evidence.accuracy,
        "copies": evidence.copies,
        "left_out": {
            "count": len(left_out),
            "share_per_class": [round(share, 4) for share in plan.left_out_C],
            "least_trusted_ids": least_trusted[:_MAX_NAMED].tolist(),
        },
    }


STRATEGY = Strategy(
    function=auto,
    summary="by what is found in the data; class-balanced random where no gain is known",
    paper="",
    cost="N (C + d) + N^2 d / C",
    needs=SIGNALS | {Need.COPIES},
    revision=1,
    proxy="auto",
)
