"""Selection: the chosen examples, and simple ways to choose.

Shapes: N examples, K budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.core.auto.findings import PlanFindings, StrataFindings


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
