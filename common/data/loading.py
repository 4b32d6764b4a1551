"""Loading: a source's rows made into a data set, with every example checked.

Here it is decided at which size a model sees the images, whether they stay in memory, and which
are excluded because they are broken. Of a set that stays encoded, every image's header and end are
read before it is used; that is kept, as it takes an hour where every one of a million images is a
request to a store.

Shapes: N examples, B of a block, V values of one, C channels, H x W pixels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lipt.common.config.run_config import FingerprintKind
from lipt.common.data.dataset import Dataset
from lipt.common.data.fingerprinting import fingerprint
from lipt.common.data.parallel import Progress, map_rows, threads_for
from lipt.common.data.sources.image_files import EncodedRows
from lipt.common.data.sources.index import kept
from lipt.common.data.sources.rows import ArrayRows, ColumnRows, ImageRows, Rows, require_labels
from lipt.common.errors import ConfigError, DataError
from lipt.common.images.formats import Header
from lipt.common.inputs.specs import Column, ColumnsSpec, ImageSpec
from lipt.common.text import format_bytes

logger = logging.getLogger(__name__)

# Decoded pixels up to this size stay in memory.
MEMORY_BUDGET_BYTES = 2 * 2**30

# The largest size that images keep where all have it; a step on it is what others are compared to.
MAX_OWN_SIZE = 64
# Other images get that of ImageNet models.
_DEFAULT_SIZE = 224
_MAX_SIZE = 4096

# Errors name so many broken images.
_MOST_NAMED = 20
# For hashing files, whose bytes come from a disk or a network.
_NUM_HASHING_THREADS = 4
# Values that are checked together, with what that takes of memory.
_BLOCK_VALUES = 2**24
# What is kept of a look at all images; raised whenever that, or the check, changes.
_FORMAT = 2


@dataclass(frozen=True)
class Bearable:
    """Which images may be broken; they are excluded.

    Attributes:
        at_most: how many, besides those that are known. Where there may be any, every image is
            decoded once, which finds those that are broken in their middle.
        known: ids that are not looked at, ascending.
    """

    at_most: int = 0
    known: tuple[int, ...] = ()


NONE_BROKEN = Bearable()


@dataclass(frozen=True)
class Sizes:
    """The sizes of a set's images, from the smallest side to the largest; height before width."""

    low: tuple[int, int]
    high: tuple[int, int]

    @classmethod
    def of(cls, header: Header) -> Sizes:
        """Those of one image."""
        return cls((header.height, header.width), (header.height, header.width))

    def with_one(self, header: Header) -> Sizes:
        """These, and another image's."""
        height, width = header.height, header.width
        return Sizes(
            (min(self.low[0], height), min(self.low[1], width)),
            (max(self.high[0], height), max(self.high[1], width)),
        )

    @property
    def differ(self) -> bool:
        """Whether the images have more than one size."""
        return self.low != self.high

    def __str__(self) -> str:
        low, high = (" x ".join(map(str, size)) for size in (self.low, self.high))
        return f"sizes from {low} to {high}" if self.differ else f"{low} pixels"


def scaling_note(
    sizes: Sizes, image_shape: tuple[int, int, int], num_examples: int, *, in_memory: bool
) -> str:
    """What a scaling costs; empty where images are seen at their own size."""
    channels, height, width = image_shape
    if not sizes.differ and sizes.low == (height, width):
        return ""
    each = channels * height * width
    where = "in memory" if in_memory else "in all, decoded anew whenever they are needed"
    note = (
        f"its images have {sizes} and are scaled to {height} x {width}: {format_bytes(each)} "
        f"each, {format_bytes(num_examples * each)} {where}"
    )
    times = height * width / MAX_OWN_SIZE**2
    if times <= 1:
        return note
    return (
        f"{note}; a training step takes about {times:.0f} times what it would at {MAX_OWN_SIZE} x "
        f"{MAX_OWN_SIZE}. Choose another size with --image-size, such as --image-size "
        f"{MAX_OWN_SIZE}"
    )


class _BrokenImages:
    """The broken files of a set; an error of a user's own function is raised at once."""

    def __init__(self, rows: Rows, at_most: int = 0) -> None:
        self._rows = rows
        self._at_most = at_most
        self._first: DataError | None = None
        self._named: list[str] = []
        self._count = 0
        # No more than there may be.
        self.ids: list[int] = []

    def note(self, row: int, error: DataError) -> None:
        if not isinstance(self._rows, EncodedRows):
            raise error
        self._first = self._first or error
        self._count += 1
        if self._count <= self._at_most:
            self.ids.append(row)
        if len(self._named) < _MOST_NAMED:
            self._named.append(f"image {row} ({self._rows.where(row)}): {error.__cause__ or error}")

    def require_few(self) -> None:
        if self._first is None or self._count <= self._at_most:
            return
        if self._count == 1:
            raise self._first
        listed = "\n".join(self.named)
        allowed = f", and at most {self._at_most} may be left out" if self._at_most else ""
        raise DataError(
            f"{self._count} of {len(self._rows)} images of {self._rows.source} cannot be used"
            f"{allowed}. Replace them, or remove them and open the data again:\n{listed}"
        )

    @property
    def named(self) -> list[str]:
        more = self._count - len(self._named)
        return [*self._named, *([f"and {more} more: lipt check --data lists all"] if more else [])]


@dataclass(frozen=True)
class _Look:
    """What all images of a set have in common, and the ids of those that cannot be used."""

    sizes: Sizes
    grayscale: bool
    quarantined: tuple[int, ...]


def load(
    rows: ImageRows,
    *,
    image_size: int | None,
    memory_budget_bytes: int,
    progress: Progress | None,
    read_all: Callable[[], str] | None = None,
    bearable: Bearable = NONE_BROKEN,
) -> Dataset:
    """Check every row and make a data set of them, of one channel if all images are grayscale.

    Arguments as `open_dataset`, with `read_all` of `Dataset`. A set that turns out to have several
    small sizes is gone through twice.
    """
    if image_size is not None and not 1 <= image_size <= _MAX_SIZE:
        raise ConfigError(
            f"the image size {image_size} is outside 1..{_MAX_SIZE} pixels. "
            "Choose the size that the model takes, such as 32 or 224."
        )
    first = _first_whole(rows, frozenset(bearable.known))
    own_size = image_size is None and max(first.height, first.width) <= MAX_OWN_SIZE
    chosen = image_size or _DEFAULT_SIZE
    size = (first.height, first.width) if own_size else (chosen, chosen)
    num_threads = threads_for(first.height * first.width) if rows.concurrent else 1

    def scan(size: tuple[int, int]) -> tuple[np.ndarray | None, _Look]:
        fits = len(rows) * 3 * size[0] * size[1] <= memory_budget_bytes
        pixels_NCHW = np.zeros((len(rows), 3, *size), np.uint8) if fits else None

        def look() -> _Look:
            return _look(rows, pixels_NCHW, first, size, num_threads, progress, bearable)

        return pixels_NCHW, look() if fits else _kept_look(rows, look, bearable)

    pixels_NCHW, look = scan(size)
    if own_size and look.sizes.differ:
        size = (_DEFAULT_SIZE, _DEFAULT_SIZE)
        pixels_NCHW, look = scan(size)
    _warn_of_quarantined(rows, look.quarantined)
    require_labels(rows.labels_N, len(rows.class_names), rows.source)
    inputs = ImageSpec(1 if look.grayscale else 3, *size)
    loaded: Rows = rows
    if pixels_NCHW is not None:
        images_NCHW = np.ascontiguousarray(pixels_NCHW[:, : inputs.channels])
        loaded = ArrayRows(
            rows.source, rows.class_names, rows.labels_N, images_NCHW, targets=rows.targets
        )
    return Dataset(
        loaded,
        fingerprint(rows.labels_N, len(rows.class_names), rows.raw, targets=rows.targets),
        inputs,
        num_threads if loaded is rows else 1,
        stamp=rows.stamp,
        read_all=read_all,
        scaling=scaling_note(look.sizes, inputs.shape, len(rows), in_memory=loaded is not rows),
        quarantined=look.quarantined,
    )


def _first_whole(rows: ImageRows, known: frozenset[int]) -> Header:
    """The format of the first image that is not broken."""
    broken = _BrokenImages(rows)
    for row in range(len(rows)):
        if row in known:
            continue
        try:
            return rows.check(row)
        except DataError as error:
            broken.note(row, error)
    broken.require_few()
    raise DataError(f"{rows.source} holds no images. Open data with at least one per class.")


def _look(
    rows: ImageRows,
    pixels_NCHW: np.ndarray | None,
    first: Header,
    size: tuple[int, int],
    num_threads: int,
    progress: Progress | None,
    bearable: Bearable,
) -> _Look:
    """One pass over all rows, which fills the pixels, or only checks the files."""
    known = frozenset(bearable.known)

    def visit(row: int) -> Header | DataError | None:
        if row in known:
            return None
        try:
            if pixels_NCHW is None:
                return rows.read(row, 3, size)[0] if bearable.at_most else rows.check(row)
            # Grayscale images have three equal channels here; one is kept if all are grayscale.
            header, pixels_NCHW[row] = rows.read(row, 3, size)
        except DataError as error:
            return error
        return header

    sizes, grayscale = Sizes.of(first), True
    broken = _BrokenImages(rows, bearable.at_most)
    found = map_rows(visit, range(len(rows)), num_threads=num_threads, progress=progress)
    for row, header in enumerate(found):
        if isinstance(header, DataError):
            broken.note(row, header)
        elif header is not None:
            sizes = sizes.with_one(header)
            grayscale = grayscale and header.grayscale
    broken.require_few()
    for line in broken.named:
        logger.warning("%s: left out: %s", rows.source, line)
    return _Look(sizes, grayscale, tuple(sorted(known.union(broken.ids))))


def _kept_look(rows: ImageRows, look: Callable[[], _Look], bearable: Bearable) -> _Look:
    """A look at files that have not changed since is not repeated."""
    if rows.stamp is None:
        return look()

    def make() -> dict[str, Tensor]:
        found = look()
        return {
            "sizes": torch.tensor([*found.sizes.low, *found.sizes.high]),
            "gray": torch.tensor([found.grayscale]),
            "quarantined": torch.tensor(found.quarantined, dtype=torch.int64),
        }

    files = rows.stamp.paths, rows.stamp.digest
    tensors = kept("images", (_FORMAT, rows.source, len(rows), *files, (bearable,)), make)
    low_height, low_width, high_height, high_width = tensors["sizes"].tolist()
    sizes = Sizes((low_height, low_width), (high_height, high_width))
    return _Look(sizes, bool(tensors["gray"].item()), tuple(tensors["quarantined"].tolist()))


def _warn_of_quarantined(rows: ImageRows, ids: tuple[int, ...]) -> None:
    if ids:
        logger.warning(
            "%d of %d images of %s cannot be used and are left out: %s%s",
            *(len(ids), len(rows), rows.source, ", ".join(map(str, ids[:_MOST_NAMED]))),
            " and more" if len(ids) > _MOST_NAMED else "",
        )


def full_fingerprint(rows: Rows, progress: Progress | None) -> str:
    """The full fingerprint of a source, read to its end."""
    rows.complete_labels()
    return fingerprint(
        rows.labels_N,
        len(rows.class_names),
        rows.raw,
        FingerprintKind.FULL,
        targets=rows.targets,
        num_threads=_NUM_HASHING_THREADS if rows.encoded and rows.concurrent else 1,
        progress=progress,
    )


def load_columns(
    rows: ColumnRows, *, image_size: int | None, read_all: Callable[[], str] | None = None
) -> Dataset:
    """Check every value of examples that are no images, and make a data set of them."""
    if image_size is not None:
        raise ConfigError(
            f"{rows.source} holds no images, so there is none to scale to {image_size} pixels. "
            "Leave the image size out."
        )
    if len(rows) == 0:
        raise DataError(f"{rows.source} holds no examples. Open data with at least one per class.")
    for column in rows.columns:
        _require_values(rows.tensors[column.name], column, len(rows), rows.source)
    require_labels(rows.labels_N, len(rows.class_names), rows.source)
    digest = fingerprint(rows.labels_N, len(rows.class_names), rows.raw, targets=rows.targets)
    return Dataset(rows, digest, ColumnsSpec(rows.columns), stamp=rows.stamp, read_all=read_all)


def _require_values(values_N: Tensor, column: Column, num_rows: int, source: str) -> None:
    if values_N.dtype != column.type.dtype or tuple(values_N.shape) != (num_rows, *column.shape):
        raise DataError(
            f"{source}: column {column} of {num_rows} rows holds {values_N.dtype} of shape "
            f"{tuple(values_N.shape)}. Read it with its own type and shape."
        )
    if not values_N.is_floating_point() and not column.num_values:
        return
    flat_NV = values_N.reshape(num_rows, -1)
    size = max(1, _BLOCK_VALUES // max(1, flat_NV.shape[1]))
    for start in range(0, num_rows, size):
        block_BV = flat_NV[start : start + size]
        if values_N.is_floating_point():
            bad_BV = ~block_BV.isfinite()
        else:
            bad_BV = (block_BV < 0) | (block_BV >= column.num_values)
        bad_B = bad_BV.any(dim=1)
        if bool(bad_B.any()):
            row = start + int(bad_B.to(torch.uint8).argmax())
            what, remedy = (
                ("that is not finite", "Fill in or remove what is missing.")
                if values_N.is_floating_point()
                else (
                    f"outside 0..{column.num_values - 1}",
                    "Number the values from 0, and say how many there are.",
                )
            )
            named = f"column {column.name!r}" if column.name else "its tensor"
            raise DataError(f"{source}: row {row} has a value {what} in {named}. {remedy}")
