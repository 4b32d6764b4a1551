"""Readiness: whether theta* has been trained for long enough for its learners' weights to be right.

From a theta* that knows little, learners move along what all sources share, and a source with
random labels gets weight. Two learners of each source, on other examples in another order, then
agree on wrong weights, so their agreement alone is no test. theta* is ready if both hold:

- learners merged by weights that other learners gave remove some of a constant answer's loss on
  the target (theta* itself may know nothing where sources contradict each other),
- weights fitted to either half of the learners keep most of their gain under the other half.

Shapes: N target examples, T outputs, K sources.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.core.pretraining.merged import Merged
from lipt.core.pretraining.simplex import uniform
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import MASKED, Regression, Target

MIN_KNOWLEDGE, MIN_AGREEMENT = 0.125, 0.5


@dataclass(frozen=True)
class Readiness:
    """Of a theta* after `steps` shared steps.

    knowledge: share of a constant answer's loss on the target that merged learners remove.
    agreement: least share of a half's gain over equal shares that the other half's weights keep.
    """

    steps: int
    knowledge: float
    agreement: float

    @property
    def is_ready(self) -> bool:
        return self.knowledge >= MIN_KNOWLEDGE and self.agreement >= MIN_AGREEMENT

    def __str__(self) -> str:
        return (
            f"after {self.steps} shared steps merged learners remove {self.knowledge:.0%} of a "
            f"constant answer's loss (at least {MIN_KNOWLEDGE:.1%} is needed), and one half of the "
            f"learners keeps {self.agreement:.0%} of the other's gain (at least "
            f"{MIN_AGREEMENT:.0%})"
        )


def readiness_of(
    steps: int, halves: tuple[Merged, Merged], pool_targets_N: Tensor, *, seed: int
) -> tuple[Readiness, Tensor]:
    """Compare the weights of two halves of the learners, and both with a constant answer.

    Also returns what each target example gains under one half by the other half's weights.
    """
    first, _ = halves
    answers = float(constant_losses(first.target, pool_targets_N, first.targets_N).mean())
    weights = [half.fit(seed=seed, num_resamples=0).weights_K for half in halves]
    equal_K, kept, crossed, left = uniform(first.num_sources), list[float](), list[Tensor](), 0.0
    for half, own_K, other_K in zip(halves, weights, reversed(weights), strict=True):
        losses_N = [half.losses_at(shares_K) for shares_K in (equal_K, own_K, other_K)]
        gain_N = losses_N[0] - losses_N[1]
        gain, noise = float(gain_N.mean()), float(gain_N.std()) / len(gain_N) ** 0.5
        crossed.append(losses_N[0] - losses_N[2])
        left += float(losses_N[2].mean()) / len(halves)
        # Where equal shares are as good, there is nothing to agree on.
        kept.append(float(crossed[-1].mean()) / gain if gain > noise else 1.0)
    return Readiness(steps, 1 - left / answers, min(kept)), torch.stack(crossed).mean(dim=0)


def constant_losses(target: Target, pool_targets_N: Tensor, targets_N: Tensor) -> Tensor:
    """The losses of the best constant answer to the pool on other examples; N."""
    if target.kind is not TargetKind.TOKENS:
        return target.losses(constant_outputs(target, pool_targets_N, len(targets_N)), targets_N)
    counts_V = pool_targets_N[pool_targets_N != MASKED].bincount(minlength=target.num_outputs) + 1.0
    counted_NL = targets_N != MASKED
    losses_NL = -(counts_V / counts_V.sum()).log()[targets_N.clamp(min=0)] * counted_NL
    return losses_NL.sum(dim=1) / counted_NL.sum(dim=1)


def constant_outputs(target: Target, pool_targets_N: Tensor, num_examples: int) -> Tensor:
    """The outputs of the best constant answer to the pool; N x T."""
    if target.kind is TargetKind.CLASS:
        counts_T = pool_targets_N.bincount(minlength=target.num_outputs) + 1.0
        outputs_T = (counts_T / counts_T.sum()).log()
    elif isinstance(target, Regression):
        outputs_T = target.learned(pool_targets_N).mean(dim=0)
    else:
        outputs_T = torch.logit((pool_targets_N.double().mean(dim=0)).clamp(1e-6, 1 - 1e-6))
    return outputs_T.float().expand(num_examples, -1)
