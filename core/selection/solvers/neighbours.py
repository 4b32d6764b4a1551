"""Neighbours: the examples with the nearest features to each.

Up to `MOST_EXACT` examples all pairs are compared, N^2 D. Beyond it examples are kept in lists
around centres of k-means, in half precision, and faiss searches the lists nearest to each example.
Of twice as many candidates as are wanted, distances are computed in float64. Recall is in
docs/benchmarks.md. K-means starts from one seed and learns on one thread: thread counts do not
change the answer.

Shapes: N examples, D features, B or R rows of a block, M columns or candidates, L lists.
Source: Jegou et al. 2011, "Product Quantization for Nearest Neighbor Search" (the inverted
lists); Douze et al. 2024, "The Faiss library" (arXiv:2401.08281).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Tensor

from lipt.common.imports import require_extra
from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.gradients.vectors import Rows, Vectors

if TYPE_CHECKING:
    import faiss

Search = Annotated[
    Literal["auto", "exact", "approximate"],
    "how neighbours are found; auto is exact up to 100,000 examples, then approximate",
]

MOST_EXACT = 100_000
# A block's distances are gone through several times: they should stay in the cache.
_BLOCK_BYTES = 8 * 1024**2
# Relative to a squared length of 1: what rounding may leave of the distance of equal features.
_RESOLUTION = 1e-12
_SEED = 0
# Lists that are searched for an example; more where these would hold too few.
_NUM_SEARCHED = 32
# The lists that are searched hold so many times as many examples as are wanted.
_LEAST_SEARCHED = 16
# Examples per centre of a list that k-means learns from, at most.
_LEARNT_FROM = 64
# Examples of a list in the mean, at least.
_LEAST_OF_LIST = 40


def is_approximate(search: Search, num_examples: int) -> bool:
    """Whether neighbours among so many examples are searched approximately."""
    return search == "approximate" or (search == "auto" and num_examples > MOST_EXACT)


def nearest_neighbours(
    features_ND: Tensor, count: int, *, normalized: bool = True, search: Search = "auto"
) -> Tensor:
    """The examples with the nearest features to each, not itself, nearest first; N x count.

    At equal distances the lowest ids come first. Normalized, features are scaled to length 1.

    Raises:
        MissingExtraError: approximate, and faiss is not installed.
    """
    if is_approximate(search, len(features_ND)):
        blocks = approximate_neighbours(features_ND, count, normalized=normalized)
        return torch.cat([neighbours_RM for _, neighbours_RM in blocks])
    vectors = Rows(Vectors(features_ND))
    distances_of = _between_directions(vectors) if normalized else vectors.squared_distances
    parts = []
    for rows in row_blocks(len(vectors), 16 * len(vectors), _BLOCK_BYTES):
        ids_R = torch.arange(rows.start, rows.stop, device=vectors.squares_N.device)
        distances_RN = distances_of(ids_R)
        distances_RN[ids_R - rows.start, ids_R] = torch.inf
        parts.append(nearest(distances_RN, count))
    return torch.cat(parts)


def _between_directions(vectors: Rows) -> Callable[[Tensor], Tensor]:
    """Squared distances of vectors scaled to length 1, but for zeros; 0 from equal ones."""
    norms_N = vectors.squares_N.sqrt()
    inverses_N = norms_N.reciprocal().masked_fill(norms_N == 0, 0.0)
    lengths_N = (norms_N > 0).double()

    def distances_of(ids_R: Tensor) -> Tensor:
        distances_RN = vectors.products(ids_R)
        distances_RN *= -2 * inverses_N[ids_R, None]
        distances_RN *= inverses_N
        distances_RN += lengths_N
        distances_RN += lengths_N[ids_R, None] * (1 - _RESOLUTION)
        return distances_RN.clamp_(min=0.0)

    return distances_of


def approximate_neighbours(
    features_ND: Tensor, count: int, *, normalized: bool
) -> Iterator[tuple[slice, Tensor]]:
    """The rows of a block, and their probably nearest neighbours, B x count; block by block."""
    require_extra("faiss", package="faiss-cpu", extra="neighbours", needed_for="search=approximate")
    import faiss  # noqa: PLC0415 - an extra

    num_examples, num_features = features_ND.shape
    rows_of = _comparable(features_ND, normalized=normalized)
    num_candidates = min(2 * count + 1, num_examples)
    threads_before = faiss.omp_get_max_threads()
    try:
        lists = _lists(rows_of, (num_examples, num_features), count)
        for rows in row_blocks(num_examples, 16 * num_candidates * num_features):
            own_BD = rows_of(rows)
            candidates_BM = _search(lists, own_BD, num_candidates).sort(dim=1).values
            distances_BM = (rows_of(candidates_BM) - own_BD[:, None]).square().sum(dim=-1)
            ids_B = torch.arange(rows.start, rows.stop)
            distances_BM.masked_fill_(candidates_BM == ids_B[:, None], torch.inf)
            neighbours_BM = candidates_BM.gather(1, nearest(distances_BM, count))
            yield rows, neighbours_BM.to(features_ND.device)
    finally:
        faiss.omp_set_num_threads(threads_before)


def _comparable(features_ND: Tensor, *, normalized: bool) -> Callable[[slice | Tensor], Tensor]:
    """Rows as they are compared, in float64 on the CPU, and in the range of half precision."""
    blocks = row_blocks(len(features_ND), 4 * features_ND.shape[1])
    largest = 1.0 if normalized else max(float(features_ND[rows].abs().max()) for rows in blocks)

    def rows_of(ids: slice | Tensor) -> Tensor:
        rows_BD: Tensor = features_ND[ids].cpu().double()
        if not normalized:
            return rows_BD / (largest or 1.0)
        norms_B1: Tensor = torch.linalg.vector_norm(rows_BD, dim=-1, keepdim=True)
        return rows_BD / norms_B1.masked_fill_(norms_B1 == 0, 1.0)

    return rows_of


def _lists(
    rows_of: Callable[[slice | Tensor], Tensor], shape: tuple[int, int], count: int
) -> faiss.IndexIVFScalarQuantizer:
    import faiss  # noqa: PLC0415 - an extra

    num_examples, num_features = shape
    num_lists = max(1, min(round(4 * math.sqrt(num_examples)), num_examples // _LEAST_OF_LIST))
    # Distances as they are: halves of what differs from a centre are another for each list.
    quantizer, bits = faiss.IndexFlatL2(num_features), faiss.ScalarQuantizer.QT_fp16
    lists = faiss.IndexIVFScalarQuantizer(
        quantizer, num_features, num_lists, bits, faiss.METRIC_L2, False
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
    """The ids of the nearest in a few lists, or in all where these hold too few."""
    import faiss  # noqa: PLC0415 - an extra

    wanted_BD = rows_BD.float().numpy()
    found_BM = lists.search(wanted_BD, count)[1]
    lacking_B = (found_BM < 0).any(axis=1)
    if lacking_B.any():
        everywhere = faiss.SearchParametersIVF()
        everywhere.nprobe = lists.nlist
        found_BM[lacking_B] = lists.search(wanted_BD[lacking_B], count, params=everywhere)[1]
    return torch.from_numpy(found_BM)


def nearest(distances_RN: Tensor, count: int) -> Tensor:
    """The columns of the smallest distances of each row, ties to the lowest; R x count.

    The bits of a float64 that is not negative, read as an integer, have the same order. Its last
    bits, rounded away, make room for the column. The distances are overwritten.
    """
    num_columns = distances_RN.shape[1]
    id_bits = max(24, num_columns.bit_length())
    keys_RN = distances_RN.view(torch.int64)
    keys_RN.add_(1 << (id_bits - 1)).bitwise_and_(-(1 << id_bits))
    keys_RN.bitwise_or_(torch.arange(num_columns, device=keys_RN.device))
    return keys_RN.topk(count, dim=-1, largest=False).indices
