"""Auto: diagnose the data, and choose by the findings.

1. `lipt.core.auto.evidence`: label quality, wrong labels and near-duplicates.
2. `lipt.core.auto.plan`: which examples to exclude, and how to choose among the rest.
3. Choice among the rest: facility location on the features (Wei et al. 2015, ICML) or random, in
   equal shares of the classes by default.

For labels or numbers no gain is known: every stratum (rarest label, or quantile) gets its share.

Shapes: N examples, n of one class, C classes, K budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from lipt.common.determinism import derive_seed
from lipt.core.auto.evidence import Training, gather
from lipt.core.auto.findings import PlanFindings, StrataFindings
from lipt.core.auto.plan import REDUNDANT, Method, make_plan
from lipt.core.diagnosis.duplicates import surplus_duplicates
from lipt.core.diagnosis.label_errors import find_label_errors
from lipt.core.selection.selection import Selection, unweighted
from lipt.core.selection.strategies.facility_location import facility_location
from lipt.core.selection.strategies.random_draws import uniform
from lipt.core.selection.strategy import Cost, Growth, built_in
from lipt.core.signals.views import ExampleLabels, Features, LastLayer, NearDuplicates
from lipt.data.groups import class_quotas, members, proportional_quotas
from lipt.data.targets.kinds import TargetKind


@built_in(
    summary="what suits the data; random where no gain is known",
    cost=Cost(Growth.PAIRS, "N (C + d) + N^2 d / C"),
    revision=1,
    is_random=True,
    proxy="auto",
)
def auto(
    layer: LastLayer,
    duplicates: NearDuplicates,
    budget: int,
    *,
    training: Annotated[
        Training, "main training to the end, or stopped early as in a search of hyper-parameters"
    ] = "converged",
    balanced: bool,
    seed: int,
) -> Selection:
    """Keep the examples that the findings in the data recommend, and report these.

    The signals come from a head whose output for an example is leave-one-out.
    """
    if layer.kind is not TargetKind.CLASS:
        return auto_strata(layer, duplicates, budget, balanced=balanced, seed=seed)
    labels_N, quality = layer.labels_N, find_label_errors(layer)
    # Near-duplicates of an example with a better label.
    order_N = quality.quality_N.argsort(descending=True, stable=True)
    copies_N = torch.empty_like(quality.suspects_N)
    copies_N[order_N] = surplus_duplicates(duplicates.duplicate_group_N[order_N])
    copies = float(copies_N.double().mean())
    evidence = gather(layer, quality, budget, training, copies)
    plan = make_plan(evidence)
    if not plan.excludes_duplicates:
        copies_N = torch.zeros_like(copies_N)
    counts_C = labels_N.bincount(minlength=len(plan.wrong_C)).tolist()
    own_C = labels_N[~copies_N].bincount(minlength=len(counts_C)).tolist()
    counted_C = effective_counts(own_C if sum(own_C) >= budget else counts_C, plan.wrong_C, budget)
    share = class_quotas if balanced else proportional_quotas
    candidates, excluded = [], []
    shares = zip(members(labels_N, len(counted_C)), share(counted_C, budget), strict=True)
    for label, (of_class, quota) in enumerate(shares):
        # Best labels first, near-duplicates last.
        rows = of_class[quality.quality_N[of_class].argsort(descending=True, stable=True)]
        rows = rows[copies_N[rows].int().argsort(stable=True)]
        num_candidates = max(quota, round((1 - plan.excluded_C[label]) * own_C[label]))
        candidates.append((rows[:num_candidates].sort().values, quota))
        excluded.append(rows[num_candidates:])
    chosen = _choose(layer, candidates, plan.method, seed)
    left_out = torch.cat(excluded)
    left_out = left_out[quality.quality_N[left_out].argsort(stable=True)]
    findings = PlanFindings(evidence, plan, quality.noise.overall, left_out)
    return replace(chosen, findings=findings, is_random=plan.method is Method.RANDOM)


def effective_counts(
    counts_C: Sequence[int], wrong_C: Sequence[float], budget: int
) -> tuple[int, ...]:
    """Examples of each class that count for its quota: right labels, and more if needed."""
    wrong = sum(share * count for share, count in zip(wrong_C, counts_C, strict=True))
    spared = min(1.0, (sum(counts_C) - budget) / wrong) if wrong else 0.0
    pairs = zip(wrong_C, counts_C, strict=True)
    return tuple(math.ceil((1 - spared * share) * count) for share, count in pairs)


def auto_strata(
    layer: LastLayer, duplicates: NearDuplicates, budget: int, *, balanced: bool, seed: int
) -> Selection:
    """Draw from every stratum of examples with labels or numbers."""
    labels_N = layer.labels_N
    surplus_N = surplus_duplicates(duplicates.duplicate_group_N)
    copies = float(surplus_N.double().mean())
    # Near-duplicates are used only if nothing else is left.
    if copies < REDUNDANT or int((~surplus_N).sum()) < budget:
        surplus_N = torch.zeros_like(surplus_N)
    counts = labels_N[~surplus_N].bincount(minlength=int(labels_N.max()) + 1).tolist()
    quotas = (class_quotas if balanced else proportional_quotas)(counts, budget)
    strata = (
        (rows[~surplus_N[rows]], quota)
        for rows, quota in zip(members(labels_N), quotas, strict=True)
    )
    findings = StrataFindings(layer.kind, balanced, copies, int(surplus_N.sum()))
    drawn = _choose(layer, strata, Method.RANDOM, seed)
    return replace(drawn, findings=findings, is_random=True)


def _choose(
    layer: LastLayer, candidates: Iterable[tuple[Tensor, int]], method: Method, seed: int
) -> Selection:
    chosen = []
    for label, (rows, quota) in enumerate(candidates):
        if not quota:
            continue
        # The seed of strategies that see one class at a time: random equals `uniform_per_class`.
        own_seed = derive_seed(seed, "selection-class", label)
        if method is Method.RANDOM:
            selection = uniform(ExampleLabels(rows), quota, seed=own_seed)
        else:
            features = Features(layer.features_ND, layer.labels_N).take(rows)
            selection = facility_location(features, quota, seed=own_seed, space="features")
        chosen.append(rows[selection.indices_K.to(rows.device)])
    return unweighted(torch.cat(chosen))
