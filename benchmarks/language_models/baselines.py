"""Baselines that need no learners: BM25 and nearest examples.

Shapes: N target examples, M pool examples, K sources.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.language_models.sources import Encoded
from benchmarks.language_models.training import SMALL, Network
from lipt.data.sources.tables.causal import FIRST
from lipt.data.targets.values import MASKED

# Examples of the pool that vote for each target example.
_NUM_NEAREST = 20


def words_of(examples: Encoded, network: Network = SMALL) -> list[list[str]]:
    """Words and marks of whole examples, completion included, in lower case."""
    found = list[list[str]]()
    for tokens_L, wanted_L in zip(examples.tokens_NL, examples.wanted_NL, strict=True):
        last = int((wanted_L != MASKED).nonzero().max())
        whole = [*tokens_L[: last + 1].tolist(), int(wanted_L[last])]
        text = network.text_of([token - FIRST for token in whole if token >= FIRST])
        found.append(re.findall(r"\w+|[^\w\s]", text.lower()))
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
