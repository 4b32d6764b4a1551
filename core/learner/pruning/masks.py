"""Pruning masks: exactly as many weights are kept as the density asks for, by their scores."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lipt.common.errors import ConfigError


def masks_of_largest(scores: Mapping[str, Tensor], density: float) -> dict[str, Tensor]:
    """Mark the largest scores over all tensors together (global pruning).

    Args:
        scores: one per weight, any shapes, finite.
        density: share of the weights that is kept, in (0, 1].

    Returns:
        bool tensors of the scores' names and shapes with exactly
        `round(density * total)` true values among them (halves to even). Of
        equal scores the earlier ones are kept, in the order of the tensors and
        of the elements in them.

    Raises:
        ConfigError: `density` is outside (0, 1].
    """
    if not 0.0 < density <= 1.0:
        raise ConfigError(
            f"density {density} is outside (0, 1]: it is the share of weights that pruning KEEPS. "
            "The paper draws it from 0.85 to 0.95; set 1 to keep all of them."
        )
    if not scores:
        return {}
    flat_T = torch.cat([score.flatten() for score in scores.values()])
    kept_T = _largest(flat_T, round(density * len(flat_T)))
    parts = torch.split(kept_T, [score.numel() for score in scores.values()])
    return {
        name: part.view(score.shape)
        for (name, score), part in zip(scores.items(), parts, strict=True)
    }


def _largest(scores_T: Tensor, count: int) -> Tensor:
    """Mark the `count` largest of T scores; of equal ones the first."""
    if count in {0, len(scores_T)}:
        return torch.full_like(scores_T, count > 0, dtype=torch.bool)
    threshold = scores_T.kthvalue(len(scores_T) - count + 1).values
    kept_T = scores_T > threshold
    num_ties = count - int(kept_T.sum())
    kept_T[(scores_T == threshold).nonzero().flatten()[:num_ties]] = True
    return kept_T
