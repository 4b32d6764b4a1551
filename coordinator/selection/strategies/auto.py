"""Auto: look at the data first, and choose by what was found there.

Leave-one-out outputs of a ridge head say which labels are trusted, and how many are wrong. What
to do about it depends on how many are kept, so that a plan is made (lipt.coordinator.selection.
plan), and where no gain is known the plan is class-balanced random. Classes get equal shares
unless told otherwise.

Shapes: N examples, n of one class, C classes, K budget.
Source: the head's outputs are read as in Northcutt et al. 2021 (arXiv:1911.00068), the rest is
represented by facility location (Wei et al. 2015, ICML).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lipt.common.determinism.seeding import derive_seed
from lipt.coordinator.diagnosis.label_errors import LabelErrors, find_label_errors
from lipt.coordinator.selection.plan import Evidence, Plan, make_plan
from lipt.coordinator.selection.quotas import class_quotas, proportional_quotas
from lipt.coordinator.selection.selection import Selection, unweighted
from lipt.coordinator.selection.strategies.facility_location import facility_location
from lipt.coordinator.selection.strategies.uniform import uniform
from lipt.coordinator.selection.strategy import SIGNALS, Strategy
from lipt.coordinator.signals.signals import Signals

# A manifest is to stay a page that one can read; a diagnosis has all of them.
_MAX_NAMED = 1000


def auto(signals: Signals, budget: int, *, balanced: bool, seed: int) -> Selection:
    """Keep what is worth keeping by what is found in the data; the findings say what that is.

    Args:
        signals: of a head that did not learn from the example it judges.
        budget: K.
        balanced: equal shares for the classes, as far as they reach, or those that they have.
        seed: of what is drawn.

    Raises:
        SignalsError: there are no errors to judge labels by.
    """
    labels_N = signals.labels_N
    found = find_label_errors(signals)
    evidence = gather(found, labels_N, budget)
    plan = make_plan(evidence)
    counts_C = labels_N.bincount().tolist()
    parts, left_out = [], []
    quotas_C = (class_quotas if balanced else proportional_quotas)(counts_C, budget)
    for label, quota in enumerate(quotas_C):
        rows = torch.nonzero(labels_N == label).flatten()
        # The most trusted first; of equally trusted ones the first.
        order = found.quality_N[rows].argsort(descending=True, stable=True)
        num_left = max(quota, round((1 - plan.left_out_C[label]) * len(rows)))
        left_out.append(rows[order[num_left:]])
        if quota:
            candidates = rows[order[:num_left]].sort().values
            chosen = _choose(signals, candidates, quota, plan, derive_class_seed(seed, label))
            parts.append(chosen)
    selection = unweighted(torch.cat(parts))
    findings = _findings(evidence, plan, found, torch.cat(left_out))
    return Selection(selection.indices_K, selection.weights_K, findings=findings)


def gather(found: LabelErrors, labels_N: Tensor, budget: int) -> Evidence:
    """What the plan is made of."""
    counts_C = labels_N.bincount(minlength=len(found.thresholds_C))
    wrong_N = (found.suggested_N != labels_N).double()
    wrong_C = torch.zeros(len(counts_C), dtype=torch.float64, device=labels_N.device)
    wrong_C.index_add_(0, labels_N, wrong_N)
    return Evidence(
        fraction=budget / len(labels_N),
        errors_C=tuple((wrong_C / counts_C.clamp(min=1)).tolist()),
        num_classes=int((counts_C > 0).sum()),
        noise_rate=found.noise.overall.rate,
        noise_low=found.noise.overall.low,
        noise_C=tuple(rate.rate for rate in found.noise.per_class),
    )


def derive_class_seed(seed: int, label: int) -> int:
    """As for strategies that see one class at a time, so that plain random is that of them."""
    return derive_seed(seed, "selection-class", label)


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
        plan.why,
    ]
    return {
        "words": words,
        "method": plan.method,
        "noise": {"low": noise.low, "rate": noise.rate, "high": noise.high},
        "accuracy": evidence.accuracy,
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
    needs=SIGNALS,
    proxy="auto",
)
