"""Random pruning: what the other methods have to beat (LiPT, Appendix D)."""

from __future__ import annotations

import torch

from lipt.core.learner.pruning.inputs import PruningInputs, Scores


def uniform(inputs: PruningInputs) -> Scores:
    """Score the weights by a random permutation: every set of them is as likely to stay."""
    sizes = [weight.numel() for weight in inputs.weights.values()]
    # A permutation has no ties, which float32 draws would have among millions of weights.
    ranks = torch.split(torch.randperm(sum(sizes), generator=inputs.generator), sizes)
    return {
        name: rank.view(weight.shape)
        for (name, weight), rank in zip(inputs.weights.items(), ranks, strict=True)
    }
