"""Duplicates: examples that are there twice, to the pixel or nearly so, and which one is kept.

Examples are gone through from the best label to the worst. One that is like an example kept
before (the cosine of centred and scaled features reaches a threshold) is its duplicate, and
else it is kept itself. So nothing chains: every duplicate is like the one that is kept for
it, and no two that are kept are alike. In a group, the best label stays.

Pairs are looked for among projections on some random directions, and what is near there is
compared in full. A projected cosine c of M directions has a deviation of (1 - c^2) / sqrt(M)
around the full one: with four deviations of margin one in 30,000 of the pairs that only just
reach the threshold is overlooked, and fewer of those well above. Time is N^2 M / 2 for the
pairs and N D for the rest; memory is N M, whatever D is.

Shapes: N examples, D features, M directions, B examples of a block, K kept, P pairs.
Source: random projections, Johnson and Lindenstrauss 1984.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lipt.coordinator.signals.blocks import row_blocks

THRESHOLD = 0.8
_NUM_DIRECTIONS = 128
_DEVIATIONS = 4.0
# All pairs within a block are compared in full; with those kept before, tile by tile.
_BLOCK = 512
_TILE = 8192


@dataclass(frozen=True)
class Duplicates:
    """Which example stands for which.

    kept_N: int64, the id that is kept for each; its own id where it is kept itself.
    exact_groups: how many pictures are there more than once to the pixel.
    near_groups: how many groups hold pictures that differ.
    conflicting: how many groups hold examples of different labels.
    threshold: the cosine from which two are alike.
    """

    kept_N: Tensor
    exact_groups: int
    near_groups: int
    conflicting: int
    threshold: float

    @property
    def surplus(self) -> int:
        """How many are not kept."""
        return int((self.kept_N != torch.arange(len(self.kept_N))).sum())

    def groups(self) -> list[list[int]]:
        """The ids of each group of two or more, the kept one first; the largest group first."""
        order_N = self.kept_N.argsort(stable=True)
        sizes = self.kept_N[order_N].unique_consecutive(return_counts=True)[1].tolist()
        groups = [ids_B.tolist() for ids_B in order_N.split(sizes) if len(ids_B) > 1]
        groups = [_first(group, int(self.kept_N[group[0]])) for group in groups]
        return sorted(groups, key=lambda group: (-len(group), group[0]))


def find_duplicates(
    features_ND: Tensor,
    labels_N: Tensor,
    quality_N: Tensor,
    digests: Sequence[bytes],
    *,
    generator: torch.Generator,
    threshold: float = THRESHOLD,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Duplicates:
    """Find what is there twice.

    Args:
        features_ND: any floating type, finite; D = 0 for exact duplicates alone.
        labels_N: int64.
        quality_N: of the labels: the best of a group is kept, of equal ones the lowest id.
        digests: a hash of each example's pixels; N.
        generator: draws the directions.
        threshold: of the cosine, in (0, 1].
        on_progress: told how many of N are compared.
    """
    by_quality_N = quality_N.argsort(descending=True, stable=True).cpu()
    pictures_N, first_U = _pictures(digests, by_quality_N)
    # From here on places in `first_U` stand for examples: the best one of each picture.
    kept_U = _kept(features_ND, first_U, generator, threshold, on_progress)
    kept_N = first_U[kept_U][pictures_N]
    num_pictures = len(first_U)
    near_U = kept_U.bincount(minlength=num_pictures) > 1
    return Duplicates(
        kept_N=kept_N,
        exact_groups=int((pictures_N.bincount(minlength=num_pictures) > 1).sum()),
        near_groups=int(near_U.sum()),
        conflicting=len(kept_N[labels_N.cpu() != labels_N.cpu()[kept_N]].unique()),
        threshold=threshold,
    )


def _first(group: list[int], kept: int) -> list[int]:
    return [kept, *(member for member in group if member != kept)]


def _pictures(digests: Sequence[bytes], by_quality_N: Tensor) -> tuple[Tensor, Tensor]:
    """Each example's picture, and each picture's example of the best label, best first."""
    places: dict[bytes, int] = {}
    pictures_N = torch.empty_like(by_quality_N)
    first = []
    for example in by_quality_N.tolist():
        place = places.setdefault(digests[example], len(places))
        pictures_N[example] = place
        if place == len(first):
            first.append(example)
    return pictures_N, torch.tensor(first, dtype=torch.int64)


@dataclass(frozen=True)
class _Rows:
    """Features as cosines compare them: centred, scaled, of unit length."""

    features_ND: Tensor
    mean_D: Tensor
    inverse_D: Tensor

    def __call__(self, ids_B: Tensor) -> Tensor:
        """Rows of some ids; B x D float32. What is all average stays zero: like nothing."""
        rows_BD = self.features_ND[ids_B].float().sub_(self.mean_D).mul_(self.inverse_D)
        return functional.normalize(rows_BD, dim=-1)


def _rows_of(features_ND: Tensor) -> _Rows:
    num_examples, num_features = features_ND.shape
    sums_D = torch.zeros(num_features, dtype=torch.float64, device=features_ND.device)
    squares_D = torch.zeros_like(sums_D)
    for rows in row_blocks(num_examples, 8 * num_features):
        sums_D += features_ND[rows].sum(dim=0, dtype=torch.float64)
    mean_D = sums_D / num_examples
    for rows in row_blocks(num_examples, 16 * num_features):
        squares_D += (features_ND[rows].double() - mean_D).square_().sum(dim=0)
    variance_D = squares_D / num_examples
    # Below that it is what rounding has left of equal values.
    varies_D = variance_D > 1e-12 * mean_D.square() + 1e-30
    inverse_D = torch.where(varies_D, variance_D.clamp(min=1e-30).rsqrt(), 0.0)
    return _Rows(features_ND, mean_D.float(), inverse_D.float())


def _kept(
    features_ND: Tensor,
    first_U: Tensor,
    generator: torch.Generator,
    threshold: float,
    on_progress: Callable[[int, int], None],
) -> Tensor:
    """The place that is kept for each place of `first_U`, which are gone through in order."""
    num_pictures, num_features = len(first_U), features_ND.shape[1]
    kept_U = torch.arange(num_pictures)
    if not num_features:
        return kept_U
    device = features_ND.device
    rows_of = _rows_of(features_ND)
    directions_DM = _directions(num_features, generator).to(device)
    near = threshold - _margin(threshold, num_features)
    # Of those kept so far, in the order in which they were.
    projected_KM = torch.empty(num_pictures, directions_DM.shape[1], device=device)
    places_K = torch.empty(num_pictures, dtype=torch.int64, device=device)
    num_kept = 0
    for block in row_blocks(num_pictures, 1, _BLOCK):
        ids_B = first_U[block].to(device)
        rows_BD = rows_of(ids_B)
        projected_BM = functional.normalize(rows_BD @ directions_DM, dim=-1)
        best_B = torch.full((len(ids_B),), -1.0, device=device)
        place_B = torch.arange(block.start, block.stop, device=device)
        own_B = place_B.clone()
        for tile in row_blocks(num_kept, 1, _TILE):
            cosines_BK = projected_BM @ projected_KM[tile].T
            left_P, right_P = torch.nonzero(cosines_BK >= near, as_tuple=True)
            found_P = places_K[tile][right_P]
            full_P = _full(rows_BD, left_P, rows_of, first_U.to(device)[found_P])
            _take_best(best_B, place_B, left_P, found_P, full_P)
        stays_B = best_B < threshold
        cosines_BB = rows_BD @ rows_BD.T
        _go_through(cosines_BB, stays_B, threshold)
        # Each duplicate goes to the one that it is most like, also of this block.
        before_BB = cosines_BB.masked_fill_(~stays_B, -1.0).tril_(-1)
        in_block_B, column_B = before_BB.max(dim=1)
        better_B = ~stays_B & (in_block_B >= threshold) & (in_block_B > best_B)
        place_B = torch.where(better_B, own_B[column_B], place_B)
        kept_U[block] = torch.where(stays_B, own_B, place_B).cpu()
        count = int(stays_B.sum())
        projected_KM[num_kept : num_kept + count] = projected_BM[stays_B]
        places_K[num_kept : num_kept + count] = own_B[stays_B]
        num_kept += count
        on_progress(block.stop, num_pictures)
    return kept_U


def _directions(num_features: int, generator: torch.Generator) -> Tensor:
    """Random directions, or all coordinates where these are as few; D x M."""
    if num_features <= _NUM_DIRECTIONS:
        return torch.eye(num_features)
    return torch.randn(num_features, _NUM_DIRECTIONS, generator=generator)


def _margin(threshold: float, num_features: int) -> float:
    if num_features <= _NUM_DIRECTIONS:
        return 1e-4
    return _DEVIATIONS * (1 - threshold**2) / math.sqrt(_NUM_DIRECTIONS) + 1e-4


def _full(
    rows_BD: Tensor, left_P: Tensor, rows_of: Callable[[Tensor], Tensor], ids_P: Tensor
) -> Tensor:
    """The full cosines of pairs: of a row of the block, and of an example by its id."""
    full_P = torch.empty(len(left_P), device=rows_BD.device)
    for pairs in row_blocks(len(left_P), 16 * rows_BD.shape[1]):
        full_P[pairs] = (rows_BD[left_P[pairs]] * rows_of(ids_P[pairs])).sum(dim=-1)
    return full_P


def _take_best(
    best_B: Tensor, place_B: Tensor, left_P: Tensor, found_P: Tensor, full_P: Tensor
) -> None:
    """Note for each row of the block what it is most like, in place; ties to the first kept."""
    before_B = best_B.clone()
    best_B.scatter_reduce_(0, left_P, full_P, "amax")
    is_best_P = (full_P == best_B[left_P]) & (full_P > before_B[left_P])
    # Backwards, so that the first one is what stays.
    for row, place in zip(
        left_P[is_best_P].flip(0).tolist(), found_P[is_best_P].flip(0).tolist(), strict=True
    ):
        place_B[row] = place


def _go_through(cosines_BB: Tensor, stays_B: Tensor, threshold: float) -> None:
    """Drop from those that stay, in place, who is like an earlier one that stays."""
    alike_BB = (cosines_BB >= threshold).triu_(1)
    for row in torch.nonzero(alike_BB.any(dim=1)).flatten().tolist():
        if stays_B[row]:
            stays_B &= ~alike_BB[row]
