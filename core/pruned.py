"""Pruned: whether a learner's result is one of its states with some weights set to zero.

What pruning keeps it does not change, so a state and a result tell whether one step of
training lies between them: nothing but they themselves has to be believed.
"""

from __future__ import annotations

from lipt.common.weights.specs import Weights


def is_pruned_from(result: Weights, state: Weights) -> bool:
    """Whether every number of the result is the state's, or zero; both have the same tensors."""
    return all(
        bool(((values == state[name]) | (values == 0)).all()) for name, values in result.items()
    )
