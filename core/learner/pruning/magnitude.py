"""One-shot magnitude pruning: drop the weights closest to zero.

Source: LiPT (Ro et al. 2023), section 3.3; the learners' default.
"""

from __future__ import annotations

from lipt.core.learner.pruning.inputs import PruningInputs, Scores


def magnitude(inputs: PruningInputs) -> Scores:
    """Score each weight w by |w|."""
    return {name: weight.abs() for name, weight in inputs.weights.items()}
