"""Pruning: global one-shot masks by magnitude, SNIP or at random."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipt.common.config.run_config import PruningMethod
from lipt.common.errors import ConfigError
from lipt.common.weights.specs import Weights

# Pruning inputs: what a method may look at, and which of a model's tensors are pruned at all.

# One number per weight, by the tensor's name; the weights with the largest are kept.
Scores = dict[str, Tensor]


@dataclass(frozen=True)
class PruningInputs:
    """A trained model as the pruning methods see it.

    weights: the prunable tensors by name, in the model's order. Never modified.
    gradients: computes the loss's gradient for each of `weights`, same names and
        shapes; called only by the methods that need it.
    generator: a CPU generator, used only by the methods that draw.
    """

    weights: Mapping[str, Tensor]
    gradients: Callable[[], Mapping[str, Tensor]]
    generator: torch.Generator


def prunable_parameters(model: nn.Module, frozen: Collection[str] = ()) -> dict[str, nn.Parameter]:
    """The floating-point parameters with at least 2 dimensions, in the model's order.

    These are the weights of convolutions and linear layers. Biases and the
    scales of normalization layers are few, and each of them carries a whole channel.
    What is frozen stays as it is.
    """
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and parameter.ndim >= 2 and name not in frozen
    }


# Pruning masks: exactly as many weights are kept as the density asks for, by their scores.


def masks_of_largest(scores: Mapping[str, Tensor], density: float) -> dict[str, Tensor]:
    """Mark the largest scores over all tensors together (global pruning)."""
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
    if count in {0, len(scores_T)}:
        return torch.full_like(scores_T, count > 0, dtype=torch.bool)
    threshold = scores_T.kthvalue(len(scores_T) - count + 1).values
    kept_T = scores_T > threshold
    num_ties = count - int(kept_T.sum())
    kept_T[(scores_T == threshold).nonzero().flatten()[:num_ties]] = True
    return kept_T


# One-shot magnitude pruning: drop the weights closest to zero.
#
# Source: LiPT (Ro et al. 2023), section 3.3; the learners' default.


def magnitude(inputs: PruningInputs) -> Scores:
    """Score each weight w by |w|."""
    return {name: weight.abs() for name, weight in inputs.weights.items()}


# SNIP: drop the weights whose removal changes the loss least, to first order.
#
# The original prunes a network before training; here, as in the paper's Appendix
# D, the trained learner is pruned, by the loss of a minibatch of its own shard.
#
# Source: Lee et al. 2019, "SNIP: Single-shot Network Pruning based on Connection
# Sensitivity" (arXiv:1810.02340).


def snip(inputs: PruningInputs) -> Scores:
    """Score each weight w by its connection sensitivity |g w|, g the loss's gradient for w.

    The paper divides by the sum over all weights, which changes no order.
    """
    gradients = inputs.gradients()
    return {name: (gradients[name] * weight).abs() for name, weight in inputs.weights.items()}


# Random pruning: what the other methods have to beat (LiPT, Appendix D).


def uniform(inputs: PruningInputs) -> Scores:
    """Score the weights by a random permutation: every set of them is as likely to stay."""
    sizes = [weight.numel() for weight in inputs.weights.values()]
    # A permutation has no ties, which float32 draws would have among millions of weights.
    ranks = torch.split(torch.randperm(sum(sizes), generator=inputs.generator), sizes)
    return {
        name: rank.view(weight.shape)
        for (name, weight), rank in zip(inputs.weights.items(), ranks, strict=True)
    }


# Pruning of a trained learner, once, to a density: the share of weights KEPT.
#
# Its purpose is regularization and diversity among the learners; that fewer weights travel is
# a side effect. Owns the methods that a run can name and the rule that exactly as many weights
# stay as the density says. `learner` calls `prune`; nobody else imports it.

__all__ = ["METHODS", "PruningInputs", "prunable_parameters", "prune"]

METHODS: dict[PruningMethod, Callable[[PruningInputs], Scores] | None] = {
    PruningMethod.MAGNITUDE: magnitude,
    PruningMethod.SNIP: snip,
    PruningMethod.RANDOM: uniform,
    PruningMethod.NONE: None,
}


def prune(method: PruningMethod, inputs: PruningInputs, density: float) -> dict[str, Tensor]:
    """Zero the weights that a method scores lowest, over all tensors together."""
    score = METHODS[method]
    if score is None:
        return {name: weight.clone() for name, weight in inputs.weights.items()}
    masks = masks_of_largest(score(inputs), density)
    # A product would make -0.0 of what is below zero, and that is a value to be sent.
    return {
        name: weight.where(masks[name], torch.zeros_like(weight))
        for name, weight in inputs.weights.items()
    }


# Pruned: whether a learner's result is one of its states with some weights set to zero.
#
# What pruning keeps it does not change, so a state and a result tell whether one step of
# training lies between them: nothing but they themselves has to be believed.


def is_pruned_from(result: Weights, state: Weights) -> bool:
    """Whether every number of the result is the state's, or zero; both have the same tensors."""
    return all(
        bool(((values == state[name]) | (values == 0)).all()) for name, values in result.items()
    )
