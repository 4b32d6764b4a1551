"""Duplicates: examples that are there twice, to the pixel or nearly so, whatever their labels are.

Examples are gone through in their order. Each is a copy of the first earlier one that it is like
and that is no copy itself. So nothing chains, and it depends on the data alone.

Images are alike where their pixels correlate to 0.96 at the best of nine places a pixel apart; only
those are compared whose thumbnails (8 x 8 cells, centred and of unit length) have a cosine of 0.85.
A larger move, a turn or a mirror image is overlooked, and a fine difference in a large image is not
seen. Features alone do not tell copies: of 10,000 different images of cifar10-jpeg 13,773 pairs
reach a cosine of 0.8 on patches, against 10 pairs by their pixels. So rows of numbers are copies
only where they are equal.

Of the examples of one picture the best label is kept, the others are surplus.

Shapes: N examples, U different ones, M numbers of a sketch, B examples of a block, K that stand
for a picture, P pairs or pixels of a thumbnail, C channels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.inputs.specs import ImageSpec, InputSpec
from lipt.common.signals.blocks import row_blocks
from lipt.core.signals.stored import load_tensors, save_tensors

PICTURES_ALIKE = 0.96
_THUMBNAILS_ALIKE = 0.85
_BLOCK = 512
_TILE = 8192

# From P ids and P other ids: which of these pairs are alike.
Alike = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Likeness:
    """How examples are compared.

    sketches_of: B unit rows of some ids, whose cosine is quick to compute.
    near: the least cosine of two sketches of a pair that may be alike.
    alike: decides about such pairs.
    threshold: what it decides by, for people.
    """

    sketches_of: Callable[[Tensor], Tensor]
    near: float
    alike: Alike
    threshold: float


@dataclass(frozen=True)
class Copies:
    """Which picture each example is of.

    pictures_N: int64, the example that stands for it.
    exact_N: int64, the first example that is the same to the pixel.
    threshold: from which two are alike.
    """

    pictures_N: Tensor
    exact_N: Tensor
    threshold: float

    def save(self, path: Path) -> None:
        """Write a safetensors file; readers see all of it or nothing."""
        tensors = {"pictures_N": self.pictures_N, "exact_N": self.exact_N}
        save_tensors(path, tensors, {"threshold": repr(self.threshold)})

    @classmethod
    def load(cls, path: Path) -> Copies:
        """Read what `save` wrote."""

        def build(tensors: dict[str, Tensor], metadata: dict[str, str]) -> Copies:
            return cls(**tensors, threshold=float(metadata["threshold"]))

        return load_tensors(path, "copies", build)


def likeness_of_pictures(
    pictures: Pictures,
    images_of: Callable[[Tensor], Tensor],
    *,
    threshold: float = PICTURES_ALIKE,
) -> Likeness:
    """Compare images by their pixels."""

    def alike(left_P: Tensor, right_P: Tensor) -> Tensor:
        found_P = torch.empty(len(left_P), dtype=torch.bool)
        for pairs in row_blocks(len(left_P), 1, _BLOCK):
            left, right = images_of(left_P[pairs]), images_of(right_P[pairs])
            found_P[pairs] = aligned_correlation(left, right) >= threshold
        return found_P

    return Likeness(
        lambda ids_B: pictures.thumbnails_NP[ids_B], _THUMBNAILS_ALIKE, alike, threshold
    )


def find_copies(
    digests: Sequence[bytes],
    likeness: Likeness | None,
    *,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> Copies:
    """Find what is there twice."""
    numbers_N, first_U = _different(digests)
    exact_N = first_U[numbers_N]
    if likeness is None:
        return Copies(exact_N, exact_N.clone(), threshold=1.0)
    kept_U = _kept(first_U, likeness, on_progress)
    return Copies(first_U[kept_U][numbers_N], exact_N, likeness.threshold)


def _different(digests: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    numbers: dict[bytes, int] = {}
    first: list[int] = []
    for example, digest in enumerate(digests):
        if numbers.setdefault(digest, len(numbers)) == len(first):
            first.append(example)
    return torch.tensor([numbers[digest] for digest in digests]), torch.tensor(first)


def _kept(first_U: Tensor, likeness: Likeness, on_progress: Callable[[int, int], None]) -> Tensor:
    num_different = len(first_U)
    kept_U = torch.arange(num_different)
    width = likeness.sketches_of(first_U[:1]).shape[1]
    # Of those kept so far, in the order in which they were.
    sketches_KM = torch.empty(num_different, width)
    numbers_K = torch.empty(num_different, dtype=torch.int64)
    num_kept = 0
    for block in row_blocks(num_different, 1, _BLOCK):
        ids_B = first_U[block]
        sketches_BM = likeness.sketches_of(ids_B)
        kept_B = kept_U[block]
        own_B = kept_B.clone()
        for tile in row_blocks(num_kept, 1, _TILE):
            near_BK = sketches_BM @ sketches_KM[tile].T >= likeness.near
            row_P, column_P = torch.nonzero(near_BK, as_tuple=True)
            numbers_P = numbers_K[tile][column_P]
            is_alike_P = likeness.alike(ids_B[row_P], first_U[numbers_P])
            # The first one that was kept: own numbers are larger than any of these.
            kept_B.scatter_reduce_(0, row_P[is_alike_P], numbers_P[is_alike_P], "amin")
        near_BB = (sketches_BM @ sketches_BM.T >= likeness.near).triu_(1)
        for row in torch.nonzero(near_BB.any(dim=1)).flatten().tolist():
            if kept_B[row] == own_B[row]:
                later_P = torch.nonzero(near_BB[row] & (kept_B == own_B)).flatten()
                is_alike_P = likeness.alike(ids_B[row].expand(len(later_P)), ids_B[later_P])
                kept_B[later_P[is_alike_P]] = own_B[row]
        stays_B = kept_B == own_B
        count = int(stays_B.sum())
        sketches_KM[num_kept : num_kept + count] = sketches_BM[stays_B]
        numbers_K[num_kept : num_kept + count] = own_B[stays_B]
        num_kept += count
        on_progress(block.stop, num_different)
    return kept_U


@dataclass(frozen=True)
class Duplicates:
    """Which example stands for which.

    kept_N: int64, the id that is kept for each; its own id where it is kept itself.
    exact_groups: how many pictures are there more than once to the pixel.
    near_groups: how many groups hold pictures that differ.
    conflicting: how many groups hold examples of different labels.
    threshold: from which two are alike.
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
        groups: dict[int, list[int]] = {}
        for example, kept in enumerate(self.kept_N.tolist()):
            if example != kept:
                groups.setdefault(kept, [kept]).append(example)
        return sorted(groups.values(), key=lambda group: (-len(group), group[0]))


def find_duplicates(labels_N: Tensor, quality_N: Tensor, copies: Copies) -> Duplicates:
    """Say which example is kept of each picture."""
    ids_N = torch.arange(len(labels_N))
    by_quality_N = quality_N.argsort(descending=True, stable=True)
    ranks_N = torch.empty_like(ids_N).scatter_(0, by_quality_N, ids_N)
    best_N = torch.full_like(ids_N, len(ids_N)).scatter_reduce_(
        0, copies.pictures_N, ranks_N, "amin"
    )
    kept_N = by_quality_N[best_N[copies.pictures_N]]
    different = copies.exact_N == ids_N
    return Duplicates(
        kept_N=kept_N,
        exact_groups=int((copies.exact_N.bincount() > 1).sum()),
        near_groups=int((copies.pictures_N[different].bincount() > 1).sum()),
        conflicting=len(set(kept_N[labels_N != labels_N[kept_N]].tolist())),
        threshold=copies.threshold,
    )


_CELLS = 8
# Rows of fewer pixels are numbers of another kind.
_SMALLEST = 4
# Sides of what pixels are compared of; larger images are averaged down to that.
_SIDE = 32
_SHIFT = 1


@dataclass(frozen=True)
class Pictures:
    """What was seen of all images in one pass.

    digests: a hash of each image's pixels.
    thumbnails_NP: float32, of unit length; zeros for an image of one colour.
    """

    digests: list[bytes]
    thumbnails_NP: Tensor


def are_pictures(inputs: InputSpec) -> bool:
    """Whether examples are images whose pixels have neighbours that mean something."""
    return isinstance(inputs, ImageSpec) and min(inputs.height, inputs.width) >= _SMALLEST


def look_at(
    images_of: Callable[[Tensor], Tensor],
    num_images: int,
    *,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> Pictures:
    """Hash all images, and keep a thumbnail of each."""
    digests: list[bytes] = []
    thumbnails = []
    image_bytes = 16 * images_of(torch.tensor([0])).numel()
    for rows in row_blocks(num_images, image_bytes):
        images_BCHW = images_of(torch.arange(rows.start, rows.stop))
        digests += [hashlib.sha256(image.tobytes()).digest() for image in images_BCHW.numpy()]
        thumbnails.append(_unit(_averaged(images_BCHW.float(), _CELLS)))
        on_progress(rows.stop, num_images)
    return Pictures(digests, torch.cat(thumbnails))


def aligned_correlation(left_BCHW: Tensor, right_BCHW: Tensor) -> Tensor:
    """The correlation of pairs of pictures at the best of nine places; B float32 in [-1, 1].

    Pictures of one colour correlate with nothing.
    """
    left, right = (_averaged(images.float(), _SIDE) for images in (left_BCHW, right_BCHW))
    height, width = left.shape[2:]
    inner = _unit(left[:, :, _SHIFT : height - _SHIFT, _SHIFT : width - _SHIFT])
    best_B = torch.full((len(left),), -1.0)
    for top in range(2 * _SHIFT + 1):
        for start in range(2 * _SHIFT + 1):
            moved = right[:, :, top : top + height - 2 * _SHIFT, start : start + width - 2 * _SHIFT]
            best_B = torch.maximum(best_B, (inner * _unit(moved)).sum(dim=-1))
    return best_B


def _averaged(images_BCHW: Tensor, side: int) -> Tensor:
    height, width = images_BCHW.shape[2:]
    if max(height, width) <= side:
        return images_BCHW
    return functional.adaptive_avg_pool2d(images_BCHW, (min(height, side), min(width, side)))


def _unit(pixels_BCHW: Tensor) -> Tensor:
    flat_BP = pixels_BCHW.flatten(start_dim=1)
    return functional.normalize(flat_BP - flat_BP.mean(dim=1, keepdim=True), dim=1)
