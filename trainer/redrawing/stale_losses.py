"""Stale losses: of a random pool, the examples with the highest losses that are known.

Every epoch has its own pool, twice the budget unless told otherwise. A loss is known from the
last time that the example was trained on, and costs no forward pass; an example that was
never trained on comes before all others.

High losses are also those of wrong labels: `hardest_out` leaves the hardest of each pool out.

Shapes: N examples, S of the pool, K budget.
Source: Jin et al. 2026, "OrderDP: A Theoretically Guaranteed Lossless Dynamic Data Pruning
Framework" (arXiv:2606.08574). Leaving the hardest out is ours.
"""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor


class StaleOptions(BaseModel):
    """How examples are drawn by stale losses."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    pool: float = Field(default=2.0, ge=1)
    """Size of an epoch's random pool, in budgets."""
    hardest_out: float = Field(default=0.0, ge=0, lt=1)
    """Share of the pool that is left out at the hard end; 0.05 where labels are noisy."""


def draw_by_losses(
    losses_N: Tensor, budget: int, options: StaleOptions, generator: torch.Generator
) -> Tensor:
    """An epoch's examples.

    Args:
        losses_N: each example's last loss; infinite where it was never trained on.
        budget: K, in 1..N.
        options: the pool, and what is left out of it. Left out are only examples that were
            trained on before, and never so many that the budget is not reached.
        generator: the epoch's own, on the CPU.

    Returns:
        K distinct row numbers, int64, in random order. Of equal losses any may be taken.
    """
    num_examples = len(losses_N)
    pool_size = min(num_examples, max(budget, round(options.pool * budget)))
    pool_S = torch.randperm(num_examples, generator=generator)[:pool_size]
    losses_S = losses_N[pool_S].nan_to_num(nan=torch.inf, posinf=torch.inf)
    hardest_first_S = losses_S.argsort(descending=True, stable=True)
    num_unseen = int(losses_S.isinf().sum())
    num_out = min(int(options.hardest_out * pool_size), pool_size - max(budget, num_unseen))
    left = torch.cat([hardest_first_S[:num_unseen], hardest_first_S[num_unseen + num_out :]])
    chosen_K = pool_S[left[:budget]]
    return chosen_K[torch.randperm(budget, generator=generator)]
