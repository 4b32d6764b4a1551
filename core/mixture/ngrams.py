"""N-grams: each source as a model of the tokens before each one, and the target as their mixture.

The closed form for texts: no learner, no network. A model of one token is mixed with that of the
shorter context, down to equal probabilities. Shares maximize the likelihood of the target's tokens
that count, by expectation maximization.

Shapes: N texts, L positions, X of them that count, K sources.
Source: Jelinek & Mercer 1980, "Interpolated estimation of Markov source parameters".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.pretraining.simplex import uniform
from lipt.data.targets.values import MASKED

ORDER = 3
# Weight of the shorter context, in tokens seen.
_PRIOR = 5.0
_NUM_ITERATIONS = 300
# Tokens and next tokens, both N x L.
Texts = tuple[Tensor, Tensor]


def ngram_probabilities(
    sources: Sequence[Texts], texts: Texts, num_tokens: int, order: int = ORDER
) -> Tensor:
    """The probability of each token that counts under each source; X x K float64."""
    asked, wanted_X = _contexts(texts, num_tokens, order)
    columns = list[Tensor]()
    for source in sources:
        seen, next_Y = _contexts(source, num_tokens, order)
        p_X = torch.full(wanted_X.shape, 1 / num_tokens, dtype=torch.float64)
        for context_X, context_Y in zip(asked, seen, strict=True):
            total_X = _counts(context_Y, context_X)
            joint_X = _counts(
                _coded(context_Y, next_Y, num_tokens), _coded(context_X, wanted_X, num_tokens)
            )
            p_X = (joint_X + _PRIOR * p_X) / (total_X + _PRIOR)
        columns.append(p_X)
    return torch.stack(columns, dim=1)


def ngram_shares(probabilities_XK: Tensor, wanted_NL: Tensor, some_N: Tensor) -> Tensor:
    """The shares of the sources in some texts, each text's mean over its tokens counting alike."""
    counted_NL = wanted_NL != MASKED
    weights_N = torch.zeros(len(wanted_NL), dtype=torch.float64)
    weights_N[some_N] = 1 / len(some_N)
    share_X = (weights_N[:, None] * counted_NL / counted_NL.sum(dim=1, keepdim=True))[counted_NL]
    shares_K = uniform(probabilities_XK.shape[1])
    for _ in range(_NUM_ITERATIONS):
        joint_XK = probabilities_XK * shares_K
        shares_K = share_X @ (joint_XK / joint_XK.sum(dim=1, keepdim=True))
    return shares_K


def _contexts(texts: Texts, num_tokens: int, order: int) -> tuple[list[Tensor], Tensor]:
    """Codes of the 0, 1, ... tokens before each token that counts, and those tokens."""
    tokens_NL, wanted_NL = texts
    counted_NL, codes = wanted_NL != MASKED, list[Tensor]()
    code_NL = torch.zeros_like(tokens_NL)
    for back in range(order):
        codes.append(code_NL[counted_NL])
        before_NL = functional.pad(tokens_NL, (back, 0))[:, : tokens_NL.shape[1]]
        code_NL = _coded(code_NL, before_NL, num_tokens)
    return codes, wanted_NL[counted_NL].long()


def _coded(code: Tensor, token: Tensor, num_tokens: int) -> Tensor:
    # Whole numbers of 64 bits wrap around; that two contexts then meet is unlikely.
    return code * num_tokens + token


def _counts(seen_Y: Tensor, asked_X: Tensor) -> Tensor:
    values, counts = torch.unique(seen_Y, return_counts=True)
    at_X = torch.searchsorted(values, asked_X).clamp(max=len(values) - 1)
    return torch.where(values[at_X] == asked_X, counts[at_X], 0).double()
