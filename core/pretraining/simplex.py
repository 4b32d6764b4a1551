"""Simplex: weights of sources that minimize a target's loss, their strength, and intervals.

Exponentiated gradient multiplies each weight by exp(-rate x slope) and normalizes, so weights stay
shares. A penalty of strength x KL(weights || uniform) keeps them near equal shares where the target
says little. Its strength is the one with the least loss on examples that were not fitted. Intervals
come from fits to resampled target examples; nothing is trained again.

All these are many fits of one problem, so they run side by side.

Shapes: N target examples, K sources, R fits, F folds, S strengths.
Source: Kivinen & Warmuth 1997, "Exponentiated Gradient versus Gradient Descent".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.common.determinism import derive_generator

# Each example's loss under each fit's weights: R x K, float64, to R x N. Convex in the weights.
Losses = Callable[[Tensor], Tensor]

# In units of the caller's.
STRENGTHS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
NUM_FOLDS, NUM_RESAMPLES = 4, 100
_NUM_STEPS, _FIRST_RATE = 60, 1.0
_FASTER, _SLOWER = 1.3, 0.5
# Losses of float32 outputs differ by so much, relatively, without a reason.
_ROUNDING = 1e-7
# Losses computed at a time.
_MOST_LOSSES = 2**18


@dataclass(frozen=True)
class Fitted:
    """Weights fitted to a target.

    weights_K: float64, of sum 1; low_K, high_K: their 95% interval over resampled target examples.
    strength: of the penalty, in the units that `fit` was given.
    fold_N, held_out_FK: each example's fold, and weights fitted without that fold.
    """

    weights_K: Tensor
    low_K: Tensor
    high_K: Tensor
    strength: float
    fold_N: Tensor
    held_out_FK: Tensor


def uniform(num_sources: int) -> Tensor:
    return torch.full((num_sources,), 1 / num_sources, dtype=torch.float64)


def exponentiated_gradient(
    losses: Losses,
    shares_RN: Tensor,
    strengths_R: Tensor,
    num_sources: int,
    num_steps: int = _NUM_STEPS,
) -> Tensor:
    """Minimize each fit's mean loss by its shares of the examples, plus its penalty; R x K.

    Rates double and halve by themselves: a step that raises the loss is not taken.
    """
    strengths_R1, log_K = strengths_R.double()[:, None], math.log(num_sources)
    logs_RK = torch.full((len(shares_RN), num_sources), -log_K, dtype=torch.float64)
    rates_R1 = torch.full_like(strengths_R1, _FIRST_RATE)

    def value(logs_RK: Tensor) -> tuple[Tensor, Tensor]:
        weights_RK = logs_RK.exp().requires_grad_()
        with torch.enable_grad():
            means_R = (shares_RN * losses(weights_RK)).sum(dim=1)
            (slopes_RK,) = torch.autograd.grad(means_R.sum(), weights_RK)
        penalty_R = (weights_RK.detach() * (logs_RK + log_K)).sum(dim=1)
        return means_R.detach()[:, None] + strengths_R1 * penalty_R[:, None], slopes_RK

    values_R1, slopes_RK = value(logs_RK)
    for _ in range(num_steps):
        # The penalty is minimized exactly within the step, at any strength.
        moved_RK = logs_RK - rates_R1 * (slopes_RK + strengths_R1 * log_K)
        next_RK = torch.log_softmax(moved_RK / (1 + rates_R1 * strengths_R1), dim=1)
        next_values_R1, next_slopes_RK = value(next_RK)
        better_R1 = next_values_R1 <= values_R1 + _ROUNDING * values_R1.abs()
        logs_RK = torch.where(better_R1, next_RK, logs_RK)
        values_R1 = torch.where(better_R1, next_values_R1, values_R1)
        slopes_RK = torch.where(better_R1, next_slopes_RK, slopes_RK)
        rates_R1 = torch.where(better_R1, rates_R1 * _FASTER, rates_R1 * _SLOWER)
    return logs_RK.exp()


def fit(
    losses: Losses,
    num_examples: int,
    num_sources: int,
    *,
    unit: float = 1.0,
    seed: int,
    num_resamples: int = NUM_RESAMPLES,
) -> Fitted:
    """Fit weights: the strength by cross-fitting, then all examples, then resampled ones.

    `unit` is a loss that a penalty of strength 1 balances. Without resamples the interval is empty.
    """
    fold_N = _folds(num_examples, seed)
    rest_FN = torch.stack([(fold_N != fold).double() for fold in range(int(fold_N.max()) + 1)])
    rest_FN /= rest_FN.sum(dim=1, keepdim=True)
    strengths_S = unit * torch.tensor(STRENGTHS, dtype=torch.float64)
    fitted_SFK = _in_parts(
        losses,
        rest_FN.repeat(len(STRENGTHS), 1),
        strengths_S.repeat_interleave(len(rest_FN)),
        num_sources,
    ).reshape(len(STRENGTHS), len(rest_FN), num_sources)
    losses_S = torch.stack([held_out(losses, part_FK, fold_N).mean() for part_FK in fitted_SFK])
    best = int(losses_S.argmin())
    counts_BN = resampled(num_examples, num_resamples, seed)
    shares_RN = torch.cat([torch.ones(1, num_examples), counts_BN]) / num_examples
    weights_RK = _in_parts(losses, shares_RN, strengths_S[best].repeat(len(shares_RN)), num_sources)
    bounds_2 = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low_K, high_K = weights_RK[min(1, num_resamples) :].quantile(bounds_2, dim=0)
    return Fitted(weights_RK[0], low_K, high_K, STRENGTHS[best], fold_N, fitted_SFK[best])


def held_out(losses: Losses, held_out_FK: Tensor, fold_N: Tensor) -> Tensor:
    """Each example's loss under the weights that were fitted without its fold."""
    return losses(held_out_FK)[fold_N, torch.arange(len(fold_N))]


def resampled(num_examples: int, num_resamples: int, seed: int) -> Tensor:
    """How often each example is drawn in each bootstrap sample; B x N float64."""
    draws = derive_generator(seed, "mixture resamples")
    drawn_BN = torch.randint(num_examples, (num_resamples, num_examples), generator=draws)
    counts_BN = torch.zeros(num_resamples, num_examples, dtype=torch.float64)
    return counts_BN.scatter_add_(1, drawn_BN, torch.ones_like(counts_BN))


def _folds(num_examples: int, seed: int) -> Tensor:
    order_N = torch.randperm(num_examples, generator=derive_generator(seed, "mixture folds"))
    return order_N % min(NUM_FOLDS, num_examples)


def _in_parts(losses: Losses, shares_RN: Tensor, strengths_R: Tensor, num_sources: int) -> Tensor:
    size = max(1, _MOST_LOSSES // shares_RN.shape[1])
    parts = zip(torch.split(shares_RN, size), torch.split(strengths_R, size), strict=True)
    return torch.cat([exponentiated_gradient(losses, *part, num_sources) for part in parts])
