"""Strategies for a target: the examples of a pool that help with what a few examples show.

`loss_drop` looks at losses before and after a short learner on the target: an example with a wrong
answer, or with the target's words for another task, gets a larger loss. Its words cannot show that.
`rds_plus` and `bm25` compare hidden states and words. `perplexity` and `ifd` need no target.

A target may have several parts: each part in turn takes its best example that is not taken yet.

Shapes: N examples, M of the target, P lists of examples by rank, R their length, K chosen ones,
D features, W words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from lipt.common.imports import import_extra
from lipt.core.selection.selection import Selection, keep_largest, unweighted
from lipt.core.selection.strategy import Balance, Cost, Growth, built_in
from lipt.core.signals.views import (
    InitialLosses,
    TargetFeatures,
    TargetLosses,
    TargetWords,
    UnpromptedLosses,
)
from lipt.data.targets.kinds import TargetKind

Duplicates = Annotated[
    Literal["drop", "keep"], "examples of the data that duplicate one of the target's"
]
Spread = Annotated[
    float,
    Field(ge=1, le=1000),
    "look at so many times as many of the largest drops, for what is like the target",
]
Steps = Annotated[int, Field(ge=1, le=10_000), "steps of the short learner on the target"]
# The option that says how long a learner on the target is.
STEPS, DEFAULT_STEPS = "steps", 10
# One of N examples for every of P lists: the first ranks.
BestRanks = Callable[[int], Tensor]
Targeted = TargetLosses | TargetFeatures | TargetWords

_KINDS = frozenset(TargetKind)
_TOKENS = frozenset({TargetKind.TOKENS})
# Of lists that share most of their examples, more ranks than this are looked at.
_RANKS_EACH = 4


@built_in(
    summary="largest drops of the loss by a short learner on target_data",
    paper="Train on Validation (2025, arXiv:2510.00386)",
    cost=Cost(Growth.LINEAR, "two forward passes, k M d"),
    balance=Balance.NEVER,
    kinds=_KINDS,
    revision=1,
)
def loss_drop(
    initial: InitialLosses,
    target: TargetLosses,
    features: TargetFeatures,
    budget: int,
    *,
    steps: Steps = DEFAULT_STEPS,
    spread: Spread = 2.0,
    duplicates: Duplicates = "drop",
) -> Selection:
    """Keep examples whose loss falls most, as a share of their loss under theta*.

    A longer learner remembers a small target, and lowers the loss of its like alone. The largest
    drops are of easy examples, so of twice as many, or of the better half of what it could leave
    out, those are kept whose features are nearest to the target's, as in `rds_plus`.
    """
    drops_NP = loss_drops(initial.losses_N[:, None], target.after_NP)

    def best(num_ranks: int) -> Tensor:
        return drops_NP.argsort(dim=0, descending=True, stable=True)[:num_ranks].T

    own_N = target.in_target_N
    num_own = 0 if own_N is None or duplicates == "keep" else int(own_N.sum())
    half = (budget + len(target) - num_own) // 2
    largest_drops = _in_turn(
        target, best, max(budget, min(math.ceil(spread * budget), half)), duplicates
    )
    if len(largest_drops.indices_K) <= budget:
        return largest_drops
    among_K = largest_drops.indices_K.sort().values
    nearest = nearest_to_target(features.features_ND[among_K], features.target_features_MD)
    return unweighted(among_K[in_turn(nearest, budget, len(among_K)).to(among_K.device)])


def loss_drops(before: Tensor, after: Tensor) -> Tensor:
    """(before - after) / before, float64; 0 where nothing was left to learn."""
    before, after = before.double(), after.double()
    return torch.where(before > 0, (before - after) / before.clamp(min=1e-12), 0.0)


@built_in(
    summary="hidden states nearest to those of target_data",
    paper='RDS+: Ivison et al. 2025, "Large-Scale Data Selection" (arXiv:2503.01807)',
    cost=Cost(Growth.LINEAR, "one forward pass, N M d"),
    balance=Balance.NEVER,
    kinds=_KINDS,
)
def rds_plus(target: TargetFeatures, budget: int, *, duplicates: Duplicates = "drop") -> Selection:
    """Keep what has the largest cosine to each example of the target, one after another.

    Features of a text are the mean of its last hidden states, later positions weighted more.
    """
    best = nearest_to_target(target.features_ND, target.target_features_MD)
    return _in_turn(target, best, budget, duplicates)


def nearest_to_target(features_ND: Tensor, target_MD: Tensor) -> BestRanks:
    """Examples by their cosine to each of the target's, after the mean of all is taken off."""
    mean_D = features_ND.mean(dim=0)
    pool_ND, target_MD = (
        functional.normalize(rows_D - mean_D) for rows_D in (features_ND, target_MD)
    )

    def best(num_ranks: int) -> Tensor:
        return torch.stack([_best_of(pool_ND @ one_D, num_ranks) for one_D in target_MD])

    return best


@built_in(
    summary="words of target_data, the rarer the better",
    paper='BM25: Robertson & Zaragoza 2009, "The Probabilistic Relevance Framework"',
    cost=Cost(Growth.LINEAR, "M words"),
    balance=Balance.NEVER,
    kinds=_KINDS,
)
def bm25(target: TargetWords, budget: int, *, duplicates: Duplicates = "drop") -> Selection:
    """Keep what shares the most and the rarest words with each example of the target in turn."""
    library = import_extra("bm25s", package="bm25s", extra="lm", needed_for="the strategy bm25")
    pool_NW, target_MW = target.words_NW, target.target_words_MW
    size = 1 + max(int(pool_NW.max()), int(target_MW.max()))
    tokenized = library.tokenization.Tokenized(
        ids=[row[row >= 0].tolist() for row in pool_NW],
        vocab={str(word): word for word in range(size)},
    )
    ranked = library.BM25(k1=1.5, b=0.75)
    ranked.index(tokenized, show_progress=False)

    def best(num_ranks: int) -> Tensor:
        scores = (ranked.get_scores_from_ids(row[row >= 0].tolist()) for row in target_MW)
        return torch.stack([_best_of(torch.from_numpy(one_N), num_ranks) for one_N in scores])

    return _in_turn(target, best, budget, duplicates)


Loss = Annotated[Literal["middle", "least", "most"], "which losses under theta* are kept"]


@built_in(
    summary="a middling loss per token under theta*",
    paper='Marion et al. 2023, "When Less is More" (arXiv:2309.04564)',
    cost=Cost(Growth.LINEAR, "one forward pass"),
    balance=Balance.NEVER,
    kinds=_TOKENS,
)
def perplexity(initial: InitialLosses, budget: int, *, keep: Loss = "middle") -> Selection:
    """Keep the middle of the losses: the least is of what is known, the most of noise."""
    losses_N = initial.losses_N.double()
    if keep == "middle":
        return keep_largest(-(losses_N - losses_N.median()).abs(), budget)
    return keep_largest(losses_N if keep == "most" else -losses_N, budget)


@built_in(
    summary="completions whose prompt helps least, but helps",
    paper='IFD: Li et al. 2024, "From Quantity to Quality" (arXiv:2308.12032)',
    cost=Cost(Growth.LINEAR, "two forward passes"),
    balance=Balance.NEVER,
    kinds=_TOKENS,
)
def ifd(initial: InitialLosses, alone: UnpromptedLosses, budget: int) -> Selection:
    """Keep the largest ratios below 1 of the loss with the prompt to that without it.

    From 1 on a prompt does not lead to its completion; these come last, the smallest first.
    """
    ratio_N = initial.losses_N.double() / alone.unprompted_N.double().clamp(min=1e-12)
    return keep_largest(torch.where(ratio_N < 1, ratio_N, -ratio_N), budget)


def _in_turn(target: Targeted, best: BestRanks, budget: int, duplicates: Duplicates) -> Selection:
    """The best of each list in turn; fewer than the budget if the others are the target's own."""
    leaked_N, num_examples = target.in_target_N, len(target)
    if leaked_N is None or duplicates == "keep" or not bool(leaked_N.any()):
        return unweighted(in_turn(best, budget, num_examples))
    num_leaked = int(leaked_N.sum())
    ranked = in_turn(best, min(budget + num_leaked, num_examples), num_examples)
    chosen = unweighted(ranked[~leaked_N[ranked]][:budget])
    if len(chosen.indices_K) == budget:
        return chosen
    why = (
        f"{num_leaked} of {num_examples} examples duplicate one of the target's. Give a larger "
        "pool, or the option duplicates=keep."
    )
    return Selection(chosen.indices_K, chosen.weights_K, stopped_early=why)


def in_turn(best: BestRanks, budget: int, num_examples: int) -> Tensor:
    """The first of every list, then the second of every list, ..., none twice; K int64.

    best: P lists of the examples by rank, as long as asked for; P x R.
    """
    num_lists = len(best(1))
    num_ranks = _RANKS_EACH * -(-budget // num_lists)
    while True:
        num_ranks = min(num_ranks, num_examples)
        by_rank = best(num_ranks).T.flatten().cpu().numpy()
        distinct, first = np.unique(by_rank, return_index=True)
        if len(distinct) >= budget or num_ranks == num_examples:
            return torch.from_numpy(by_rank[np.sort(first)][:budget])
        num_ranks *= 2


def _best_of(scores_N: Tensor, number: int) -> Tensor:
    """Positions of the largest scores, ties in the order of the data."""
    return scores_N.argsort(descending=True, stable=True)[:number]
