"""Auto: look at the data first, and choose by what was found there.

Leave-one-out outputs of a ridge head say which labels look wrong and which examples are
typical; features say which are copies. What that is worth depends on how many are kept, so
that a plan is made of it (lipt.coordinator.selection.plan), and where no gain is known the plan
is class-balanced random. Classes get equal shares; a class that has too few examples left
takes back the best of those that were to be left out.

Shapes: N examples, n of one class, C classes, K budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lipt.common.determinism.seeding import derive_seed
from lipt.coordinator.diagnosis.duplicates import find_duplicates
from lipt.coordinator.diagnosis.label_errors import LabelErrors, find_label_errors
from lipt.coordinator.selection.plan import Evidence, Plan, make_plan
from lipt.coordinator.selection.quotas import class_quotas
from lipt.coordinator.selection.selection import Selection
from lipt.coordinator.selection.strategies.facility_location import facility_location
from lipt.coordinator.selection.strategies.uniform import uniform
from lipt.coordinator.selection.strategy import SIGNALS, Balance, Strategy
from lipt.coordinator.signals.signals import Signals

# A manifest is to stay a page that one can read; `lipt diagnose` has all of them.
_MAX_NAMED = 1000


def auto(signals: Signals, budget: int, *, seed: int) -> Selection:
    """Keep what the diagnosis of the data says is worth keeping."""
    labels_N = signals.labels_N
    found = find_label_errors(signals)
    surplus_N = find_duplicates(signals, found).surplus_N
    evidence = _evidence(found, labels_N, surplus_N, budget)
    plan = make_plan(evidence)
    ranks_N = _ranks(found, surplus_N, plan)
    counts_C = labels_N.bincount().tolist()
    # Copies are no examples of their own, as long as there are enough without them.
    own_C = labels_N[~surplus_N].bincount(minlength=len(counts_C)).tolist()
    quotas_C = class_quotas(own_C if sum(own_C) >= budget else counts_C, budget)
    parts = list(_per_class(signals, found, ranks_N, quotas_C, plan, seed))
    indices_K = torch.cat(parts)
    findings = _findings(evidence, plan, found, surplus_N, ranks_N, indices_K)
    return Selection(indices_K, torch.ones(len(indices_K)), findings=findings)


def _evidence(found: LabelErrors, labels_N: Tensor, surplus_N: Tensor, budget: int) -> Evidence:
    counts_C = labels_N.bincount()
    right_N = (found.suggested_N == labels_N).double()
    right_C = torch.zeros(len(counts_C), dtype=torch.float64, device=labels_N.device)
    right_C.index_add_(0, labels_N, right_N)
    present_C = counts_C > 0
    return Evidence(
        fraction=budget / len(labels_N),
        accuracy=float((right_C[present_C] / counts_C[present_C]).mean()),
        guessing=1.0 / int(present_C.sum()),
        noise_low=found.noise.overall.low,
        noise_rate=found.noise.overall.rate,
        num_suspects=int(found.suspects_N.sum()),
        num_surplus=int(surplus_N.sum()),
    )


def _ranks(found: LabelErrors, surplus_N: Tensor, plan: Plan) -> Tensor:
    """What is drawn from first: 0 what is wanted, 1 what the plan leaves out, 2 copies; N."""
    ranks_N = torch.zeros_like(found.suggested_N)
    if plan.leave_out_suspects:
        ranks_N[found.suspects_N] = 1
    ranks_N[surplus_N] = 2
    return ranks_N


def _per_class(
    signals: Signals,
    found: LabelErrors,
    ranks_N: Tensor,
    quotas_C: tuple[int, ...],
    plan: Plan,
    seed: int,
) -> Iterator[Tensor]:
    for label, quota in enumerate(quotas_C):
        if not quota:
            continue
        rows = torch.nonzero(signals.labels_N == label).flatten()
        # The wanted first, the most trustworthy of them first.
        order = found.quality_N[rows].argsort(descending=True, stable=True)
        order = order[ranks_N[rows[order]].argsort(stable=True)]
        num_wanted = int((ranks_N[rows] == 0).sum())
        # The share is of the class, so that both ways of leaving out do not add up.
        num_drawn = max(quota, min(num_wanted, round(plan.share * len(rows))))
        candidates = rows[order[:num_drawn]].sort().values
        class_seed = derive_seed(seed, "selection-class", label)
        if plan.method == "random":
            chosen = uniform(signals.take(candidates), quota, seed=class_seed)
        else:
            taken = signals.take(candidates)
            chosen = facility_location(taken, quota, seed=class_seed, space="features")
        yield candidates[chosen.indices_K.to(candidates.device)].cpu()


def _findings(
    evidence: Evidence,
    plan: Plan,
    found: LabelErrors,
    surplus_N: Tensor,
    ranks_N: Tensor,
    indices_K: Tensor,
) -> dict[str, Any]:
    """What was found, decided and left out, as JSON."""
    kept_N = torch.zeros(len(ranks_N), dtype=torch.bool)
    kept_N[indices_K] = True
    ranks_N = ranks_N.cpu()
    suspects = [row for row in found.ranked().tolist() if ranks_N[row] == 1 and not kept_N[row]]
    copies = torch.nonzero(surplus_N.cpu() & ~kept_N).flatten().tolist()
    noise = found.noise.overall
    words = [
        f"{noise.rate:.1%} of the labels look wrong (95% interval {noise.low:.1%} to "
        f"{noise.high:.1%}); {evidence.num_suspects} are suspect",
        f"{evidence.num_surplus} examples are near copies of others",
        f"a head on the proxy's features is right on {evidence.accuracy:.1%} of the labels that "
        "it has not seen",
        plan.why,
    ]
    return {
        "words": words,
        "method": plan.method,
        "share_drawn_from": plan.share,
        "noise_rate": [noise.low, noise.rate, noise.high],
        "left_out": {
            "suspects": len(suspects),
            "suspect_ids": suspects[:_MAX_NAMED],
            "copies": len(copies),
            "copy_ids": copies[:_MAX_NAMED],
        },
    }


STRATEGY = Strategy(
    function=auto,
    summary="what a diagnosis of the data says is worth keeping; random where no gain is known",
    paper="",
    cost="N (C + d) + N^2 d / C",
    balance=Balance.ALWAYS,
    needs=SIGNALS,
)
