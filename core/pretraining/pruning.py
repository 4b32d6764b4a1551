"""Pruning: a trained learner keeps the share of its weights that its density names.

All tensors share one threshold (global pruning), and exactly the density's number of weights is
kept.

Shapes: T values of all tensors.
Source: LiPT (Ro et al. 2023), section 3.3 and Appendix D.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from lipt.common.config.run_config import PruningMethod
from lipt.common.errors import ConfigError
from lipt.common.tensor_files import Weights


def prunable_parameters(model: nn.Module, frozen: Collection[str] = ()) -> dict[str, nn.Parameter]:
    """Weights of convolutions and linear layers, in the model's order, except frozen ones."""
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and parameter.ndim >= 2 and name not in frozen
    }


def prune(
    method: PruningMethod,
    weights: Mapping[str, Tensor],
    density: float,
    *,
    slopes: Mapping[str, Tensor],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Zero the weights with the globally lowest scores; ConfigError unless 0 < density <= 1.

    slopes: gradients of a minibatch's loss, for SNIP alone.
    """
    match method:
        case PruningMethod.MAGNITUDE:
            # The learners' default: the weights closest to zero are zeroed.
            scores = {name: weight.abs() for name, weight in weights.items()}
        case PruningMethod.SNIP:
            # Connection sensitivity |g w| (Lee et al. 2019, arXiv:1810.02340) of the trained
            # learner. Dividing by the sum, as in the paper, changes no order.
            scores = {name: (slopes[name] * weight).abs() for name, weight in weights.items()}
        case PruningMethod.RANDOM:
            # A permutation has no ties; float32 draws would have some among millions of weights.
            size = sum(weight.numel() for weight in weights.values())
            scores = _shaped(torch.randperm(size, generator=generator), weights)
        case PruningMethod.NONE:
            return {name: weight.clone() for name, weight in weights.items()}
    masks = masks_of_largest(scores, density)
    # A product would turn negative weights into -0.0, which would be sent as a value.
    return {
        name: weight.where(masks[name], torch.zeros_like(weight))
        for name, weight in weights.items()
    }


def masks_of_largest(scores: Mapping[str, Tensor], density: float) -> dict[str, Tensor]:
    """Mark the round(density * total) largest scores over all tensors, the first of equals."""
    if not 0.0 < density <= 1.0:
        raise ConfigError(
            f"density {density} is outside (0, 1]: it is the share of weights that pruning KEEPS. "
            "The paper draws it from 0.85 to 0.95; set 1 to keep all of them."
        )
    if not scores:
        return {}
    flat_T = torch.cat([score.flatten() for score in scores.values()])
    return _shaped(_largest(flat_T, round(density * len(flat_T))), scores)


def _shaped(flat_T: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = torch.split(flat_T, [tensor.numel() for tensor in like.values()])
    return {name: part.view(like[name].shape) for name, part in zip(like, parts, strict=True)}


def _largest(scores_T: Tensor, count: int) -> Tensor:
    if count in {0, len(scores_T)}:
        return torch.full_like(scores_T, count > 0, dtype=torch.bool)
    threshold = scores_T.kthvalue(len(scores_T) - count + 1).values
    kept_T = scores_T > threshold
    num_ties = count - int(kept_T.sum())
    kept_T[(scores_T == threshold).nonzero().flatten()[:num_ties]] = True
    return kept_T


def is_pruned_from(result: Weights, state: Weights) -> bool:
    """Whether every value of a result is zero or equals that of a state with the same tensors."""
    return all(
        bool(((values == state[name]) | (values == 0)).all()) for name, values in result.items()
    )
