"""SNIP: drop the weights whose removal changes the loss least, to first order.

The original prunes a network before training; here, as in the paper's Appendix
D, the trained learner is pruned, by the loss of a minibatch of its own shard.

Source: Lee et al. 2019, "SNIP: Single-shot Network Pruning based on Connection
Sensitivity" (arXiv:1810.02340).
"""

from __future__ import annotations

from lipt.core.learner.pruning.inputs import PruningInputs, Scores


def snip(inputs: PruningInputs) -> Scores:
    """Score each weight w by its connection sensitivity |g w|, g the loss's gradient for w.

    The paper divides by the sum over all weights, which changes no order.
    """
    gradients = inputs.gradients()
    return {name: (gradients[name] * weight).abs() for name, weight in inputs.weights.items()}
