"""Approximate neighbours: nearly all that are nearest, among more examples than can be compared.

Examples are kept in lists around centres of k-means, in half precision, and of each example the
nearest lists are searched, by faiss. Of what that finds, twice as many as are wanted, distances
are computed in float64, and the nearest of these are the answer. What lies in no list that is
searched is overlooked; recall is measured in `benchmarks/neighbours.py`.

K-means starts from one seed and learns on one thread, and no two threads write to the same
place in a search: the answer does not depend on how many there are.

Shapes: N examples, D features, B of a block, M candidates, L lists.
Source: Jegou et al. 2011, "Product Quantization for Nearest Neighbor Search" (the inverted
lists); Douze et al. 2024, "The Faiss library" (arXiv:2401.08281).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lipt.common.imports import require_extra
from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.solvers.smallest import nearest

if TYPE_CHECKING:
    import faiss

_SEED = 0
# Lists that are searched for an example; more where these would hold too few.
_NUM_SEARCHED = 32
# Of what is wanted: how many times as many lie in the lists that are searched.
_LEAST_SEARCHED = 16
# Examples that the centre of a list is learnt from, at most.
_LEARNT_FROM = 64
# Examples of a list in the mean, at least.
_LEAST_OF_LIST = 40


def approximate_neighbours(
    features_ND: Tensor, count: int, *, normalized: bool
) -> Iterator[tuple[slice, Tensor]]:
    """Of one block of examples after another, those that are probably nearest; B x count.

    Args:
        features_ND: any floating type, finite.
        count: in 1..N-1. None is an example's own; nearest first, and ties go to the lowest.
        normalized: compare features scaled to length 1, but for zeros.

    Raises:
        MissingExtraError: faiss is not installed.
    """
    require_extra("faiss", package="faiss-cpu", extra="neighbours", needed_for="search=approximate")
    num_examples, num_features = features_ND.shape
    rows_of = _Comparable(features_ND, normalized=normalized)
    num_candidates = min(2 * count + 1, num_examples)
    with _threads():
        lists = _lists(rows_of, count)
        for rows in row_blocks(num_examples, 16 * num_candidates * num_features):
            own_BD = rows_of(rows)
            candidates_BM = _search(lists, own_BD, num_candidates).sort(dim=1).values
            distances_BM = (rows_of(candidates_BM) - own_BD[:, None]).square().sum(dim=-1)
            ids_B = torch.arange(rows.start, rows.stop)
            distances_BM.masked_fill_(candidates_BM == ids_B[:, None], torch.inf)
            neighbours_BM = candidates_BM.gather(1, nearest(distances_BM, count))
            yield rows, neighbours_BM.to(features_ND.device)


class _Comparable:
    """Rows as they are compared, in float64 on the CPU, and in the range of half precision."""

    def __init__(self, features_ND: Tensor, *, normalized: bool) -> None:
        self._features_ND = features_ND
        self._normalized = normalized
        num_examples, num_features = features_ND.shape
        self.shape = num_examples, num_features
        self._largest = 1.0
        if not normalized:
            blocks = row_blocks(num_examples, 4 * num_features)
            self._largest = max(float(features_ND[rows].abs().max()) for rows in blocks) or 1.0

    def __call__(self, ids: slice | Tensor) -> Tensor:
        rows_BD: Tensor = self._features_ND[ids].cpu().double()
        if not self._normalized:
            return rows_BD / self._largest
        norms_B1: Tensor = torch.linalg.vector_norm(rows_BD, dim=-1, keepdim=True)
        return rows_BD / norms_B1.masked_fill_(norms_B1 == 0, 1.0)


def _lists(rows_of: _Comparable, count: int) -> faiss.IndexIVFScalarQuantizer:
    """All examples in lists."""
    import faiss  # noqa: PLC0415 - an extra

    num_examples, num_features = rows_of.shape
    num_lists = max(1, min(round(4 * math.sqrt(num_examples)), num_examples // _LEAST_OF_LIST))
    # Distances as they are: halves of what differs from a centre are another for each list.
    lists = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatL2(num_features),
        num_features,
        num_lists,
        faiss.ScalarQuantizer.QT_fp16,
        faiss.METRIC_L2,
        False,
    )
    lists.cp.seed = _SEED
    lists.cp.max_points_per_centroid = _LEARNT_FROM
    lists.cp.min_points_per_centroid = 1
    holding = math.ceil(_LEAST_SEARCHED * count * num_lists / num_examples)
    lists.nprobe = min(num_lists, max(_NUM_SEARCHED, holding))
    generator = torch.Generator().manual_seed(_SEED)
    learnt = torch.randperm(num_examples, generator=generator)[: _LEARNT_FROM * num_lists]
    faiss.omp_set_num_threads(1)
    lists.train(rows_of(learnt.sort().values).float().numpy())
    faiss.omp_set_num_threads(torch.get_num_threads())
    for rows in row_blocks(num_examples, 16 * num_features):
        lists.add(rows_of(rows).float().numpy())
    return lists


def _search(lists: faiss.IndexIVFScalarQuantizer, rows_BD: Tensor, count: int) -> Tensor:
    """The ids of what is nearest in the lists; in all of them where a few hold too little."""
    import faiss  # noqa: PLC0415 - an extra

    wanted_BD = rows_BD.float().numpy()
    found_BM = lists.search(wanted_BD, count)[1]
    lacking_B = (found_BM < 0).any(axis=1)
    if lacking_B.any():
        everywhere = faiss.SearchParametersIVF()
        everywhere.nprobe = lists.nlist
        found_BM[lacking_B] = lists.search(wanted_BD[lacking_B], count, params=everywhere)[1]
    return torch.from_numpy(found_BM)


@contextmanager
def _threads() -> Iterator[None]:
    """As many threads for faiss as for torch, and afterwards as many as before."""
    import faiss  # noqa: PLC0415 - an extra

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(torch.get_num_threads())
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
