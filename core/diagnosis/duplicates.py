"""Duplicates: examples that occur twice, exactly or nearly so, whatever their labels are.

Each example is a duplicate of the first earlier non-duplicate that matches. So there are no chains,
and the result depends on the data alone. Images match if their pixels correlate to 0.96 at the best
of nine one-pixel shifts. Other examples match if they are equal.

Only pairs whose thumbnails (8 x 8 cells, centred and of unit length) have a cosine of 0.85 are
compared. Two cheaper bounds exclude most other pairs, and never a match: for unit vectors u and v,
split by an orthogonal projection P into Pu and the rest Ru, <u, v> is at most <Pu, Pv> + |Ru| |Rv|.
Principal components of the thumbnails bound their cosine for all pairs. 64 low frequencies of each
channel bound the pixels' correlation for near pairs, and exclude 19 of 20 of digits.

Shapes: N examples, U different ones, S numbers of a sketch, M of a bound, B examples of a block, K
kept pictures, P pairs or pixels of a thumbnail, C channels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

from lipt.core.kept_values import KeptValue
from lipt.core.passes import row_blocks
from lipt.data.inputs.specs import ImageSpec, InputSpec

MIN_CORRELATION = 0.96
_MIN_COSINE = 0.85
_BLOCK = 512
_TILE = 4096
# Pairs that are bounded at once.
_PAIRS = 4096
# Principal components of thumbnails with more numbers.
_COMPONENTS, _MAX_UNREDUCED = 40, 64
_CELLS = 8
# Images with fewer pixels a side are compared as numbers.
_SMALLEST = 4
# Side of the compared pixels; larger images are averaged down to it.
_SIDE = 32
_SHIFT = 1
# Frequencies of a bound in each direction.
_FREQUENCIES = 8
# Whose frequencies are computed at a time.
_IMAGES_IN_CACHE = 128
# Far above float32's rounding of a sum of squares of a unit vector.
_ROUNDING = 1e-4

# From rows of a block of later ids, and earlier ids: which of these pairs match; P bool.
PairFilter = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Pictures:
    """All images in the form used for comparisons.

    images_of: from ids to uint8 B x C x H x W.
    thumbnails_NP: float32, of unit length; zeros for an image of one colour.
    inner_NM: float32, low frequencies of the inner pixels, and the rest's length.
    threshold, near: minimum correlation of a match, and cosine of compared thumbnails.
    """

    images_of: Callable[[Tensor], Tensor]
    digests: Sequence[bytes]
    thumbnails_NP: Tensor
    inner_NM: Tensor
    threshold: float = MIN_CORRELATION
    near: float = _MIN_COSINE

    @classmethod
    def of(
        cls,
        images_of: Callable[[Tensor], Tensor],
        num_images: int,
        *,
        on_progress: Callable[[int, int], None] = lambda *_: None,
    ) -> Pictures:
        """Prepare all images in one pass."""
        digests: list[bytes] = []
        thumbnails, inner = [], []
        image_bytes = 16 * images_of(torch.tensor([0])).numel()
        for rows in row_blocks(num_images, image_bytes):
            images_BCHW = images_of(torch.arange(rows.start, rows.stop))
            digests += [hashlib.sha256(image.tobytes()).digest() for image in images_BCHW.numpy()]
            pixels_BCHW = images_BCHW.float()
            thumbnails.append(_unit(_averaged(pixels_BCHW, _CELLS)))
            inner.append(_low_frequencies(images_BCHW, 0)[0])
            on_progress(rows.stop, num_images)
        return cls(images_of, digests, torch.cat(thumbnails), torch.cat(inner))

    @property
    def _is_reduced(self) -> bool:
        """Whether sketches are less than the thumbnails."""
        return self.thumbnails_NP.shape[1] > _MAX_UNREDUCED

    def sketches(self) -> Tensor:
        """Rows whose products are at least the thumbnails' cosines, and fast; N x S."""
        thumbnails_NP = self.thumbnails_NP
        if not self._is_reduced:
            return thumbnails_NP
        _, directions_PP = torch.linalg.eigh((thumbnails_NP.T @ thumbnails_NP).double())
        return _with_rest(thumbnails_NP @ directions_PP[:, -_COMPONENTS:].float())

    def alike(self, standing_P: Tensor, later_P: Tensor) -> Tensor:
        """Which of these pairs match."""
        found_P = torch.empty(len(standing_P), dtype=torch.bool)
        for pairs in row_blocks(len(standing_P), 1, _BLOCK):
            standing, later = self.images_of(standing_P[pairs]), self.images_of(later_P[pairs])
            found_P[pairs] = aligned_correlation(standing, later) >= self.threshold
        return found_P

    def bound(self, later_B: Tensor) -> PairFilter:
        """Excludes most pairs with a block of later examples at little cost."""
        # Of the rows that have had a near pair, read and shifted once.
        num_shifts, size = (2 * _SHIFT + 1) ** 2, self.inner_NM.shape[1]
        moved_SBM = torch.empty(num_shifts, len(later_B), size)
        is_moved_B = torch.zeros(len(later_B), dtype=torch.bool)

        def moved(rows_Q: Tensor) -> Tensor:
            is_new_B = torch.zeros_like(is_moved_B)
            is_new_B[rows_Q] = True
            new_R = torch.nonzero(is_new_B & ~is_moved_B).flatten()
            if len(new_R):
                moved_SBM[:, new_R] = _low_frequencies(self.images_of(later_B[new_R]), _SHIFT)
                is_moved_B[new_R] = True
            return moved_SBM

        def may_match(rows_P: Tensor, standing_P: Tensor) -> Tensor:
            near_Q = torch.arange(len(rows_P))
            if self._is_reduced:
                own_PP = self.thumbnails_NP[later_B[rows_P]]
                cosines_P = (own_PP * self.thumbnails_NP[standing_P]).sum(dim=1)
                near_Q = torch.nonzero(cosines_P >= self.near).flatten()
            found_P = torch.zeros(len(rows_P), dtype=torch.bool)
            rows_Q, inner_QM = rows_P[near_Q], self.inner_NM[standing_P[near_Q]]
            best_Q = torch.full((len(near_Q),), -1.0)
            for moved_BM in moved(rows_Q):
                best_Q = torch.maximum(best_Q, (moved_BM[rows_Q] * inner_QM).sum(dim=1))
            found_P[near_Q] = best_Q >= self.threshold - _ROUNDING
            return found_P

        return may_match

    def matcher(self, later_B: Tensor) -> PairFilter:
        """Finds the pairs that match, of a block of later examples and earlier ones."""
        may_match = self.bound(later_B)

        def matches(rows_P: Tensor, standing_P: Tensor) -> Tensor:
            found_P = torch.zeros(len(rows_P), dtype=torch.bool)
            for pairs in row_blocks(len(rows_P), 1, _PAIRS):
                found_P[pairs] = may_match(rows_P[pairs], standing_P[pairs])
            likely_Q = torch.nonzero(found_P).flatten()
            found_P[likely_Q] = self.alike(standing_P[likely_Q], later_B[rows_P[likely_Q]])
            return found_P

        return matches


@dataclass(frozen=True)
class Matches(KeptValue):
    """Each example's first match and first one of equal pixels, int64; the matching threshold."""

    duplicate_group_N: Tensor
    exact_N: Tensor
    threshold: float


def find_matches(
    digests: Sequence[bytes],
    pictures: Pictures | None,
    *,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> Matches:
    """Find duplicates among N examples: equal digests, and near ones of pictures."""
    numbers: dict[bytes, int] = {}
    numbers_N = torch.tensor([numbers.setdefault(digest, len(numbers)) for digest in digests])
    ids_N = torch.arange(len(numbers_N))
    first_U = torch.full((len(numbers),), len(ids_N)).scatter_reduce_(0, numbers_N, ids_N, "amin")
    exact_N = first_U[numbers_N]
    if pictures is None:
        return Matches(exact_N, exact_N.clone(), threshold=1.0)
    kept_U = _kept(first_U, pictures, on_progress)
    return Matches(first_U[kept_U][numbers_N], exact_N, pictures.threshold)


def _kept(first_U: Tensor, pictures: Pictures, on_progress: Callable[[int, int], None]) -> Tensor:
    num_different = len(first_U)
    kept_U = torch.arange(num_different)
    sketches_US = pictures.sketches()[first_U]
    # Sketches of those kept so far, in order.
    sketches_KS = torch.empty_like(sketches_US)
    numbers_K = torch.empty(num_different, dtype=torch.int64)
    num_kept, least = 0, pictures.near - _ROUNDING
    for block in row_blocks(num_different, 1, _BLOCK):
        ids_B, sketches_BS = first_U[block], sketches_US[block]
        kept_B = kept_U[block]
        own_B = kept_B.clone()
        matches = pictures.matcher(ids_B)
        for tile in row_blocks(num_kept, 1, _TILE):
            cosines_BK = sketches_BS @ sketches_KS[tile].T
            # Most rows have nothing near, and a maximum takes a fraction of a comparison's time.
            rows_R = torch.nonzero(cosines_BK.amax(dim=1) >= least).flatten()
            row_P, column_P = torch.nonzero(cosines_BK[rows_R] >= least, as_tuple=True)
            row_P, numbers_P = rows_R[row_P], numbers_K[tile][column_P]
            is_alike_P = matches(row_P, first_U[numbers_P])
            # The first kept match: own numbers are larger than any of these.
            kept_B.scatter_reduce_(0, row_P[is_alike_P], numbers_P[is_alike_P], "amin")
        # Examples of the block without an earlier match: all with all, then one by one.
        open_B = kept_B == own_B
        near_BB = (sketches_BS @ sketches_BS.T >= least).tril_(-1)
        later_P, earlier_P = torch.nonzero(near_BB & open_B[:, None] & open_B, as_tuple=True)
        is_alike_P = matches(later_P, ids_B[earlier_P])
        later_P, earlier_P = later_P[is_alike_P], earlier_P[is_alike_P]
        for row in sorted(set(earlier_P.tolist())):
            if kept_B[row] == own_B[row]:
                copies_Q = later_P[earlier_P == row]
                still_Q = kept_B[copies_Q] == own_B[copies_Q]
                kept_B[copies_Q[still_Q]] = own_B[row]
        stays_B = kept_B == own_B
        count = int(stays_B.sum())
        sketches_KS[num_kept : num_kept + count] = sketches_BS[stays_B]
        numbers_K[num_kept : num_kept + count] = own_B[stays_B]
        num_kept += count
        on_progress(block.stop, num_different)
    return kept_U


@dataclass(frozen=True)
class DuplicateGroups:
    """The kept example of each duplicate, and counts of groups.

    kept_N: int64, the kept id for each example; its own id if it is kept.
    exact_groups: groups of equal pixels. near_groups: groups of different pictures.
    conflicting: groups with different labels.
    threshold: the minimum correlation of a match.
    """

    kept_N: Tensor
    exact_groups: int
    near_groups: int
    conflicting: int
    threshold: float

    @property
    def surplus(self) -> int:
        """Number of examples that are not kept."""
        return int((self.kept_N != torch.arange(len(self.kept_N))).sum())

    def groups(self) -> list[list[int]]:
        """The ids of each group of two or more, the kept one first; the largest group first."""
        groups: dict[int, list[int]] = {}
        for example, kept in enumerate(self.kept_N.tolist()):
            if example != kept:
                groups.setdefault(kept, [kept]).append(example)
        return sorted(groups.values(), key=lambda group: (-len(group), group[0]))


def find_duplicates(labels_N: Tensor, quality_N: Tensor, copies: Matches) -> DuplicateGroups:
    """Keep the example with the best label of each picture; ties go to the lowest id."""
    ids_N = torch.arange(len(labels_N))
    by_quality_N = quality_N.argsort(descending=True, stable=True)
    ranks_N = torch.empty_like(ids_N).scatter_(0, by_quality_N, ids_N)
    best_N = torch.full_like(ids_N, len(ids_N)).scatter_reduce_(
        0, copies.duplicate_group_N, ranks_N, "amin"
    )
    kept_N = by_quality_N[best_N[copies.duplicate_group_N]]
    different = copies.exact_N == ids_N
    return DuplicateGroups(
        kept_N=kept_N,
        exact_groups=int((copies.exact_N.bincount() > 1).sum()),
        near_groups=int((copies.duplicate_group_N[different].bincount() > 1).sum()),
        conflicting=len(set(kept_N[labels_N != labels_N[kept_N]].tolist())),
        threshold=copies.threshold,
    )


def are_pictures(inputs: InputSpec) -> bool:
    """Whether examples are images large enough for pixel comparisons."""
    return isinstance(inputs, ImageSpec) and min(inputs.height, inputs.width) >= _SMALLEST


def aligned_correlation(left_BCHW: Tensor, right_BCHW: Tensor) -> Tensor:
    """Correlation of picture pairs at the best of nine shifts; B float32 in [-1, 1]."""
    [inner_BP] = _moved(left_BCHW, 0)
    best_B = torch.full((len(inner_BP),), -1.0)
    for moved_BP in _moved(right_BCHW, _SHIFT):
        best_B = torch.maximum(best_B, (inner_BP * moved_BP).sum(dim=-1))
    return best_B


def _moved(images_BCHW: Tensor, shift: int) -> Iterator[Tensor]:
    """All pixels but the border, moved by up to `shift`, centred and of unit length; B x P."""
    pixels_BCHW = _averaged(images_BCHW.float(), _SIDE)
    height, width = (side - 2 * _SHIFT for side in pixels_BCHW.shape[2:])
    starts = range(_SHIFT - shift, _SHIFT + shift + 1)
    for top, start in product(starts, starts):
        yield _unit(pixels_BCHW[:, :, top : top + height, start : start + width])


def _low_frequencies(images_BCHW: Tensor, shift: int) -> Tensor:
    """Low frequencies of `_moved` pixels, and the lengths of the rest; S x B x M float32."""
    parts = torch.split(images_BCHW, _IMAGES_IN_CACHE)
    return torch.cat([_low_frequencies_of(part, shift) for part in parts], dim=1)


def _low_frequencies_of(images_BCHW: Tensor, shift: int) -> Tensor:
    """The low frequencies of some images.

    They are linear in the pixels, so no shifted image is formed. Float64 keeps the difference of
    sums exact.
    """
    pixels_BCHW = _averaged(images_BCHW.float(), _SIDE).double()
    pixels_BCHW -= pixels_BCHW.mean(dim=(1, 2, 3), keepdim=True)
    rows_SHF, columns_SWF = (_windows(side, shift) for side in pixels_BCHW.shape[2:])
    low = torch.einsum("bchw,swg->sbchg", pixels_BCHW, columns_SWF)
    low = torch.einsum("sbchg,thf->tsbcfg", low, rows_SHF)
    # A window's mean is in frequency 0: all channels have the same mean.
    low[..., 0, 0] -= low[..., 0, 0].mean(dim=-1, keepdim=True)
    inside_SH, inside_SW = (windows.any(dim=2).double() for windows in (rows_SHF, columns_SWF))
    squares_BHW = pixels_BCHW.square().sum(dim=1)
    lengths = torch.einsum("bhw,th,sw->tsb", squares_BHW, inside_SH, inside_SW)
    sums = torch.einsum("bhw,th,sw->tsb", pixels_BCHW.sum(dim=1), inside_SH, inside_SW)
    num_inside = pixels_BCHW.shape[1] * inside_SH[0].sum() * inside_SW[0].sum()
    lengths = (lengths - sums.square() / num_inside).clamp(min=0).sqrt().flatten(end_dim=1)
    low_SBM = low.flatten(end_dim=1).flatten(start_dim=2)
    return _with_rest((low_SBM / lengths.clamp(min=1e-9)[:, :, None]).float())


@cache
def _windows(side: int, shift: int) -> Tensor:
    """The lowest frequencies of all but the border pixels, moved by up to `shift`; S x side x F."""
    num_inside = side - 2 * _SHIFT
    waves = torch.zeros(2 * shift + 1, side, min(num_inside, _FREQUENCIES), dtype=torch.float64)
    for number, window in enumerate(waves):
        start = _SHIFT - shift + number
        window[start : start + num_inside] = _cosines(num_inside)
    return waves


def _with_rest(low_BM: Tensor) -> Tensor:
    """Projections of unit vectors, and the length of the rest of each; ... B x (M + 1)."""
    left_B1 = (1 - low_BM.square().sum(dim=-1, keepdim=True)).clamp(min=0).sqrt()
    return torch.cat((low_BM, left_B1), dim=-1)


def _cosines(side: int) -> Tensor:
    """The lowest frequencies of `side` pixels, orthonormal columns; side x F."""
    places = torch.arange(side, dtype=torch.float64)[:, None] + 0.5
    frequencies = torch.arange(min(side, _FREQUENCIES), dtype=torch.float64)
    waves = torch.cos(torch.pi * places * frequencies / side)
    return functional.normalize(waves, dim=0)


def _averaged(images_BCHW: Tensor, side: int) -> Tensor:
    height, width = images_BCHW.shape[2:]
    if max(height, width) <= side:
        return images_BCHW
    return functional.adaptive_avg_pool2d(images_BCHW, (min(height, side), min(width, side)))


def _unit(pixels_BCHW: Tensor) -> Tensor:
    flat_BP = pixels_BCHW.flatten(start_dim=1)
    return functional.normalize(flat_BP - flat_BP.mean(dim=1, keepdim=True), dim=1)


def surplus_duplicates(duplicate_group_N: Tensor) -> Tensor:
    """Which examples are near-duplicates of an earlier one; N bool."""
    order_N = duplicate_group_N.argsort(stable=True)
    sorted_N = duplicate_group_N[order_N]
    surplus_N = torch.zeros_like(duplicate_group_N, dtype=torch.bool)
    surplus_N[order_N[1:]] = sorted_N[1:] == sorted_N[:-1]
    return surplus_N
