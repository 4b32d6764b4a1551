"""Baselines that need no learners: n-grams, BM25, and nearest examples.

Shapes: N target examples, M pool examples, K sources, X tokens that count, V tokens.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.language_models.sources import MASKED, Encoded
from lipt.core.mixture.simplex import uniform
from lipt.models.causal import FIRST_BYTE, NUM_TOKENS

# Pseudo-counts of the shorter context.
_PRIOR = 5.0
_NUM_ITERATIONS = 300
# Examples of the pool that vote for each target example.
_NUM_NEAREST = 20


def ngram_densities(sources: Sequence[Encoded], examples: Encoded, order: int = 3) -> Tensor:
    """Probabilities of the tokens that count, by an interpolated n-gram model of each source.

    Returns X x K float64, in the order of `wanted_NL[wanted_NL != MASKED]`.
    """
    places, wanted_X = _contexts(examples, order)
    columns = list[Tensor]()
    for source in sources:
        seen, next_Y = _contexts(source, order)
        p_X = torch.full(wanted_X.shape, 1 / NUM_TOKENS, dtype=torch.float64)
        for length in range(order):
            context_X, context_Y = places[length], seen[length]
            total = _counts(context_Y, context_X)
            joint = _counts(context_Y * NUM_TOKENS + next_Y, context_X * NUM_TOKENS + wanted_X)
            p_X = (joint + _PRIOR * p_X) / (total + _PRIOR)
        columns.append(p_X)
    return torch.stack(columns, dim=1)


def _contexts(examples: Encoded, order: int) -> tuple[list[Tensor], Tensor]:
    counted_NL = examples.wanted_NL != MASKED
    codes, code_NL = list[Tensor](), torch.zeros_like(examples.tokens_NL)
    for back in range(order):
        codes.append(code_NL[counted_NL])
        before_NL = functional.pad(examples.tokens_NL, (back, 0))[:, : code_NL.shape[1]]
        code_NL = code_NL + before_NL * NUM_TOKENS**back
    return codes, examples.wanted_NL[counted_NL]


def _counts(seen_Y: Tensor, asked_X: Tensor) -> Tensor:
    values, counts = seen_Y.unique(return_counts=True)
    at_X = torch.searchsorted(values, asked_X).clamp(max=len(values) - 1)
    return torch.where(values[at_X] == asked_X, counts[at_X], 0).double()


def token_shares(examples: Encoded) -> Tensor:
    """Each counted token's share of the mean of the examples' mean losses; X."""
    counted_NL = examples.wanted_NL != MASKED
    each_NL = counted_NL / counted_NL.sum(dim=1, keepdim=True) / len(examples)
    return each_NL[counted_NL].double()


def ngram_shares(densities_XK: Tensor, share_X: Tensor) -> Tensor:
    """Expectation maximization of a mixture of the sources' n-gram models."""
    shares_K = uniform(densities_XK.shape[1])
    for _ in range(_NUM_ITERATIONS):
        joint_XK = densities_XK * shares_K
        shares_K = share_X @ (joint_XK / joint_XK.sum(dim=1, keepdim=True))
    return shares_K


def words_of(examples: Encoded) -> list[list[str]]:
    """Words and marks of whole examples, completion included, in lower case."""
    found = list[list[str]]()
    for tokens_L, wanted_L in zip(examples.tokens_NL, examples.wanted_NL, strict=True):
        last = int((wanted_L != MASKED).nonzero().max())
        whole = [*tokens_L[: last + 1].tolist(), int(wanted_L[last])]
        text = bytes(token - FIRST_BYTE for token in whole if token >= FIRST_BYTE)
        found.append(re.findall(r"\w+|[^\w\s]", text.decode(errors="replace").lower()))
    return found


def bm25(pool: Sequence[list[str]], queries: Sequence[list[str]]) -> np.ndarray:
    """Scores of pool documents for queries, N x M, with k1 = 1.5 and b = 0.75.

    Source: Robertson & Zaragoza 2009, "The Probabilistic Relevance Framework".
    """
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row, words in enumerate(pool):
        for word, number in Counter(words).items():
            places[word].append((row, number))
    lengths = np.array([len(words) for words in pool])
    norms = 1.5 * (1 - 0.75 + 0.75 * lengths / lengths.mean())
    scores = np.zeros((len(queries), len(pool)), dtype=np.float32)
    for row, words in enumerate(queries):
        for word in words:
            if found := places.get(word):
                rows, numbers = np.array(found).T
                rarity = np.log(1 + (len(pool) - len(rows) + 0.5) / (len(rows) + 0.5))
                scores[row, rows] += rarity * numbers * 2.5 / (numbers + norms[rows])
    return scores


def cosines(pool_MD: Tensor, queries_ND: Tensor) -> np.ndarray:
    mean_D = pool_MD.mean(dim=0)
    pool, queries = (functional.normalize(one - mean_D, dim=1) for one in (pool_MD, queries_ND))
    return (queries @ pool.T).numpy()


def shares_of_nearest(scores_NM: np.ndarray, owners_M: np.ndarray, num_sources: int) -> Tensor:
    """The sources' shares of each target example's nearest pool examples."""
    nearest = np.argsort(-scores_NM, axis=1, kind="stable")[:, :_NUM_NEAREST]
    counts_K = np.bincount(owners_M[nearest].ravel(), minlength=num_sources)
    return torch.from_numpy(counts_K / counts_K.sum())


def round_robin(scores_NM: np.ndarray, number: int) -> np.ndarray:
    """The best examples of each target example in turn, none twice."""
    chosen: dict[int, None] = {}
    for rank in np.argsort(-scores_NM, axis=1, kind="stable").T:
        for row in rank:
            if len(chosen) == number:
                return np.fromiter(chosen, dtype=np.int64)
            chosen[int(row)] = None
    return np.fromiter(chosen, dtype=np.int64)
