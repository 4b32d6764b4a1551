"""Pruning of a trained learner, once, to a density: the share of weights KEPT.

Its purpose is regularization and diversity among the learners; that fewer weights travel is
a side effect. Owns the methods that a run can name and the rule that exactly as many weights
stay as the density says. `learner` calls `prune`; nobody else imports it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lipt.common.config.run_config import PruningMethod
from lipt.core.learner.pruning.inputs import PruningInputs, Scores, prunable_parameters
from lipt.core.learner.pruning.magnitude import magnitude
from lipt.core.learner.pruning.masks import masks_of_largest
from lipt.core.learner.pruning.snip import snip
from lipt.core.learner.pruning.uniform import uniform

__all__ = ["METHODS", "PruningInputs", "prunable_parameters", "prune"]

METHODS: dict[PruningMethod, Callable[[PruningInputs], Scores] | None] = {
    PruningMethod.MAGNITUDE: magnitude,
    PruningMethod.SNIP: snip,
    PruningMethod.RANDOM: uniform,
    PruningMethod.NONE: None,
}


def prune(method: PruningMethod, inputs: PruningInputs, density: float) -> dict[str, Tensor]:
    """Zero the weights that a method scores lowest, over all tensors together.

    Args:
        method: one of `METHODS`; NONE keeps every weight whatever the density.
        inputs: the weights, on the CPU, and what the method may use besides.
        density: share of the weights that is kept, in (0, 1].

    Returns:
        New tensors of the same names, shapes and dtypes. Exactly
        `round(density * total)` weights are kept (halves to even); of equal
        scores the earlier weights are.

    Raises:
        ConfigError: `density` is outside (0, 1].
    """
    score = METHODS[method]
    if score is None:
        return {name: weight.clone() for name, weight in inputs.weights.items()}
    masks = masks_of_largest(score(inputs), density)
    # A product would make -0.0 of what is below zero, and that is a value to be sent.
    return {
        name: weight.where(masks[name], torch.zeros_like(weight))
        for name, weight in inputs.weights.items()
    }
