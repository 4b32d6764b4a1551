"""InfoBatch: every epoch without a share of the easy examples, and the others of them heavier.

Easy is what had a loss below the mean when it was last trained on. Of n easy examples m stay,
drawn anew every epoch, each with weight n/m: 1/(1 - r) for a pruned share r. So every example
counts 1 in the mean over draws, and all that are drawn count N together: the gradient of an
epoch is not biased. The last epochs are on everything.

Shapes: N examples, K of an epoch, E easy.
Source: Qin et al. 2024, "InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data
Pruning" (arXiv:2303.04947). As in the authors' code a fixed number of easy examples stays.
"""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor


class InfoBatchOptions(BaseModel):
    """How examples are drawn by InfoBatch."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    prune: float = Field(default=0.5, ge=0, lt=1)
    """Share of the easy examples that an epoch leaves out."""
    annealing: float = Field(default=0.125, ge=0, le=1)
    """Share of all epochs, at the end, that are on all examples."""

    def prunes(self, epoch: int, num_epochs: int | None) -> bool:
        """Whether an epoch, counted from 0, leaves examples out.

        Args:
            epoch: which one.
            num_epochs: how many there are; where None there is no end to be on everything for.
        """
        return num_epochs is None or epoch + 1 <= (1 - self.annealing) * num_epochs


def draw_pruned(
    losses_N: Tensor, prune: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """An epoch's examples and everybody's weights.

    Args:
        losses_N: each example's last loss; infinite where it was never trained on, which is
            not easy.
        prune: share of the easy ones that is left out, in [0, 1). One stays in any case.
        generator: the epoch's own, on the CPU.

    Returns:
        K distinct row numbers, int64, in random order; and N weights, float32: n/m for those
        easy ones that stay, 0 for those that do not, 1 for all others.
    """
    known_N = losses_N.isfinite()
    mean = losses_N[known_N].double().mean()
    easy_E = (known_N & (losses_N < mean)).nonzero().flatten()
    weights_N = torch.ones(len(losses_N))
    if len(easy_E):
        num_kept = max(1, round((1 - prune) * len(easy_E)))
        kept = easy_E[torch.randperm(len(easy_E), generator=generator)[:num_kept]]
        weights_N[easy_E] = 0.0
        weights_N[kept] = len(easy_E) / num_kept
    chosen_K = weights_N.nonzero().flatten()
    return chosen_K[torch.randperm(len(chosen_K), generator=generator)], weights_N
