"""Selection: the chosen examples, simple ways to choose, and shares of a budget.

Shapes: N examples, K budget, C classes, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.core.auto.findings import PlanFindings, StrataFindings
from lipt.data.groups import members


@dataclass(frozen=True)
class Selection:
    """The chosen examples, as positions in the signals, and their weights.

    indices_K: int64, distinct, in the order of choice.
    weights_K: float32; ones where the strategy has no weights.
    stopped_early: why there are fewer than the budget, as a sentence; else empty.
    findings: those of `auto` in the data, and its plan.
    is_random: whether another seed may give another selection; None for the strategy's own.
    """

    indices_K: Tensor
    weights_K: Tensor
    stopped_early: str = ""
    findings: PlanFindings | StrataFindings | None = None
    is_random: bool | None = None


def joined(parts: Sequence[Selection]) -> Selection:
    """Selections of distinct examples as one, rows ascending; findings of several parts go."""
    indices_K = torch.cat([part.indices_K for part in parts])
    order_K = indices_K.argsort()
    return Selection(
        indices_K[order_K],
        torch.cat([part.weights_K for part in parts])[order_K],
        stopped_early=" ".join(part.stopped_early for part in parts if part.stopped_early),
        # From a strategy that saw all examples at once.
        findings=parts[0].findings if len(parts) == 1 else None,
    )


def unweighted(indices_K: Tensor) -> Selection:
    return Selection(indices_K, torch.ones(len(indices_K), device=indices_K.device))


def keep_largest(scores_N: Tensor, budget: int) -> Selection:
    """Keep the `budget` examples with the largest scores, largest first; ties in data set order."""
    return unweighted(scores_N.argsort(descending=True, stable=True)[:budget])


def draw_by_weight(log_weights_N: Tensor, budget: int, *, generator: torch.Generator) -> Selection:
    """Draw `budget` examples without replacement; weights of 0 (-inf) come last, by id.

    The K largest of log weight + Gumbel noise (Efraimidis & Spirakis 2006).
    """
    waits_N = torch.empty(len(log_weights_N), dtype=torch.float64)
    waits_N.exponential_(generator=generator)
    noise_N = -waits_N.clamp_min(torch.finfo(torch.float64).tiny).log()
    return keep_largest(log_weights_N + noise_N.to(log_weights_N.device), budget)


def draw_from_groups(
    groups_N: Tensor, quotas_G: Sequence[int], *, generator: torch.Generator
) -> Tensor:
    """Draw `quotas_G[g]` examples of each group g; K int64."""
    # The first of each group in a random order are a random draw.
    shuffle_N = torch.randperm(len(groups_N), generator=generator).to(groups_N.device)
    groups = zip(members(groups_N[shuffle_N], len(quotas_G)), quotas_G, strict=True)
    return shuffle_N[torch.cat([places[:quota] for places, quota in groups])]


def class_quotas(counts_C: Sequence[int], budget: int) -> tuple[int, ...]:
    """Share a budget equally among classes, none above its size (water-filling).

    Other classes share what a small class cannot give. The rest of equal shares goes to the largest
    classes, ties to the lowest.
    """
    quotas = [0] * len(counts_C)
    left = budget
    while left:
        growing = [label for label, count in enumerate(counts_C) if quotas[label] < count]
        share = left // len(growing)
        if share == 0:
            growing.sort(key=lambda label: (-counts_C[label], label))
            for label in growing[:left]:
                quotas[label] += 1
            return tuple(quotas)
        for label in growing:
            more = min(share, counts_C[label] - quotas[label])
            quotas[label] += more
            left -= more
    return tuple(quotas)


def class_shares(labels_N: Tensor, budget: int) -> Iterator[tuple[int, Tensor, int]]:
    """The label, the rows and the quota of each class that gives examples."""
    rows_C = members(labels_N)
    quotas_C = class_quotas([*map(len, rows_C)], budget)
    for label, (rows, quota) in enumerate(zip(rows_C, quotas_C, strict=True)):
        if quota:
            yield label, rows, quota


def effective_counts(
    counts_C: Sequence[int], wrong_C: Sequence[float], budget: int
) -> tuple[int, ...]:
    """Examples of each class that count for its quota: right labels, and more if needed."""
    wrong = sum(share * count for share, count in zip(wrong_C, counts_C, strict=True))
    spared = min(1.0, (sum(counts_C) - budget) / wrong) if wrong else 0.0
    pairs = zip(wrong_C, counts_C, strict=True)
    return tuple(math.ceil((1 - spared * share) * count) for share, count in pairs)
