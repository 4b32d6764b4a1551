"""Loading: a data set is scanned once, scaled, and kept in memory or read on demand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from lipt.common.config.fingerprint_kind import FingerprintKind
from lipt.common.data.dataset import Dataset, in_memory
from lipt.common.data.fingerprinting import fingerprint
from lipt.common.data.parallel import Progress, map_rows, threads_for
from lipt.common.data.sources.image_files import EncodedRows
from lipt.common.data.sources.index import kept
from lipt.common.data.sources.rows import ImageRows, Rows, require_labels
from lipt.common.errors import ConfigError, DataError
from lipt.common.images.formats import Header
from lipt.common.inputs.specs import ImageSpec
from lipt.common.text import format_bytes

# Broken images: all of a set are found before any is complained of, and named in one refusal.

_MOST_NAMED = 20


class BrokenImages:
    """What is wrong with the files of a set.

    Only files are gone on after: what is wrong with one row of a user's own function is wrong
    with all of them most likely.

    Args:
        rows: the set's.
        at_most: how many may be.
    """

    def __init__(self, rows: Rows, at_most: int = 0) -> None:
        self._rows = rows
        self._at_most = at_most
        self._first: DataError | None = None
        self._named: list[str] = []
        self._count = 0
        # Of more than there may be, nobody asks.
        self.ids: list[int] = []

    def note(self, row: int, error: DataError) -> None:
        """Keep that a row cannot be used.

        Raises:
            DataError: `error` itself, where the rows are no files.
        """
        if not isinstance(self._rows, EncodedRows):
            raise error
        self._first = self._first or error
        self._count += 1
        if self._count <= self._at_most:
            self.ids.append(row)
        if len(self._named) < _MOST_NAMED:
            self._named.append(f"image {row} ({self._rows.where(row)}): {error.__cause__ or error}")

    def require_few(self) -> None:
        """Refuse a set that has more than it may.

        Raises:
            DataError: names the first 20, and says how many there are.
        """
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
        """The first 20 and what is wrong with them, and how many more there are."""
        more = self._count - len(self._named)
        return [*self._named, *([f"and {more} more: lipt check --data lists all"] if more else [])]


# Scaling: what a set's images are scaled to, what that costs, and how to choose otherwise.

# The largest size that images keep where all have it; a step on it is what others are compared to.
MAX_OWN_SIZE = 64


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
    """What to say of images that are not seen at their own size; empty where they are.

    Args:
        sizes: their own.
        image_shape: channels, height and width as the model sees them.
        num_examples: N.
        in_memory: whether they stay in memory, scaled.
    """
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


# Images looked at: what the images of a set have in common, kept, so that all are opened once.
#
# Of a set that stays encoded, every image's header and end are read before it is used. Of a million
# images that takes minutes on a disk, and an hour where every image is a request to a store.

# What is kept, and how images are checked; raised whenever that changes.
_FORMAT = 2


@dataclass(frozen=True)
class Look:
    """What a look at all images of a set has shown.

    sizes: of those that can be used.
    grayscale: whether all of these are.
    quarantined: the ids of those that cannot, ascending.
    """

    sizes: Sizes
    grayscale: bool
    quarantined: tuple[int, ...] = ()


def looked_at(rows: ImageRows, look: Callable[[], Look], asked: tuple[object, ...]) -> Look:
    """What `look` has shown once.

    Args:
        rows: the set's. Where its files are not known, or look otherwise than then, `look` is
            called again.
        look: goes through all images; raises DataError where too many are broken, and nothing is
            kept.
        asked: how closely it looks, and what may be broken.
    """
    if rows.stamp is None:
        return look()
    depends_on = (_FORMAT, rows.source, len(rows), rows.stamp.paths, rows.stamp.digest, asked)

    def make() -> dict[str, torch.Tensor]:
        found = look()
        return {
            "sizes": torch.tensor([*found.sizes.low, *found.sizes.high]),
            "gray": torch.tensor([found.grayscale]),
            "quarantined": torch.tensor(found.quarantined, dtype=torch.int64),
        }

    tensors = kept("images", depends_on, make)
    low_height, low_width, high_height, high_width = tensors["sizes"].tolist()
    sizes = Sizes((low_height, low_width), (high_height, high_width))
    return Look(sizes, bool(tensors["gray"].item()), tuple(tensors["quarantined"].tolist()))


# Loading: a source's rows made into a data set, with every image checked.
#
# Here it is decided at which size a model sees the images, whether they stay in memory, and which
# are left out because they are broken.
#
# Shapes: N images, C channels, H x W pixels.

logger = logging.getLogger(__name__)

# Decoded pixels up to this size stay in memory.
MEMORY_BUDGET_BYTES = 2 * 2**30

# What images get that do not keep their own size: that of ImageNet models.
_DEFAULT_SIZE = 224
_MAX_SIZE = 4096

# For hashing files, whose bytes come from a disk or a network.
_NUM_HASHING_THREADS = 4


@dataclass(frozen=True)
class Bearable:
    """Which images may be broken; they are left out.

    at_most: how many, besides those that are known. Where there may be any, every image is decoded
        once, which finds those that are broken in their middle.
    known: ids of such that are not looked at, ascending.
    """

    at_most: int = 0
    known: tuple[int, ...] = ()


NONE_BROKEN = Bearable()


@dataclass(frozen=True)
class _Scan:
    """One pass over all rows; pixels are N x 3 x H x W, or None where they were only checked."""

    pixels: NDArray[np.uint8] | None
    look: Look


def load(
    rows: ImageRows,
    *,
    image_size: int | None,
    memory_budget_bytes: int,
    progress: Progress | None,
    read_all: Callable[[], str] | None = None,
    bearable: Bearable = NONE_BROKEN,
) -> Dataset:
    """Check every row and make a data set of them.

    Args:
        rows: where the images come from.
        image_size: height and width in pixels; None keeps the images' own size where all
            have one of at most 64 x 64, and takes 224 otherwise.
        memory_budget_bytes: decoded pixels up to this, counted as RGB, are kept in memory.
        progress: called with (done, total) rows. A set that turns out to have several small
            sizes is gone through twice.
        read_all: as in `Dataset`.
        bearable: which images may be broken: `quarantined` in what is returned.

    Returns:
        A set of one channel if all images are grayscale, else of three.

    Raises:
        ConfigError: `image_size` is out of range.
        DataError: there are no rows, more images are broken than may be (the first 20 are named),
            or a label is no class's number.
    """
    if image_size is not None and not 1 <= image_size <= _MAX_SIZE:
        raise ConfigError(
            f"the image size {image_size} is outside 1..{_MAX_SIZE} pixels. "
            "Choose the size that the model takes, such as 32 or 224."
        )
    if len(rows) == 0:
        raise DataError(f"{rows.source} holds no images. Open data with at least one per class.")
    first = _first_whole(rows, frozenset(bearable.known))
    num_threads = threads_for(first.height * first.width) if rows.concurrent else 1
    own_size = image_size is None and max(first.height, first.width) <= MAX_OWN_SIZE
    chosen = image_size or _DEFAULT_SIZE
    size = (first.height, first.width) if own_size else (chosen, chosen)
    look = partial(_scan, rows, first, num_threads, memory_budget_bytes, progress, bearable)
    scan = look(size)
    if own_size and scan.look.sizes.differ:
        size = (_DEFAULT_SIZE, _DEFAULT_SIZE)
        scan = look(size)
    _say_quarantined(rows, scan.look.quarantined)
    require_labels(rows.labels_N, len(rows.class_names), rows.source)
    num_classes = len(rows.class_names)
    digest = fingerprint(rows.labels_N, num_classes, rows.raw, targets=rows.targets)
    channels = 1 if scan.look.grayscale else 3
    inputs = ImageSpec(channels, *size)
    resident = scan.pixels is not None
    scaling = scaling_note(scan.look.sizes, inputs.shape, len(rows), in_memory=resident)
    if scan.pixels is None:
        return Dataset(
            rows,
            digest,
            inputs,
            num_threads,
            stamp=rows.stamp,
            read_all=read_all,
            scaling=scaling,
            quarantined=scan.look.quarantined,
        )
    images_NCHW = torch.from_numpy(np.ascontiguousarray(scan.pixels[:, :channels]))
    loaded = in_memory(
        rows.source,
        rows.class_names,
        rows.labels_N,
        digest,
        images_NCHW,
        stamp=rows.stamp,
        read_all=read_all,
        scaling=scaling,
        targets=rows.targets,
    )
    return replace(loaded, quarantined=scan.look.quarantined)


def _first_whole(rows: ImageRows, known: frozenset[int]) -> Header:
    """The format of the first image that is not broken.

    Raises:
        DataError: all of them are.
    """
    broken = BrokenImages(rows)
    for row in range(len(rows)):
        if row in known:
            continue
        try:
            return rows.check(row)
        except DataError as error:
            broken.note(row, error)
    broken.require_few()
    raise DataError(f"{rows.source} holds no images. Open data with at least one per class.")


def full_fingerprint(rows: Rows, progress: Progress | None) -> str:
    """The full fingerprint of what a source holds, read to its end.

    Args:
        rows: the source's.
        progress: called with (done, total) rows.

    Raises:
        DataError: a row cannot be read.
    """
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


def _scan(
    rows: ImageRows,
    first: Header,
    num_threads: int,
    memory_budget_bytes: int,
    progress: Progress | None,
    bearable: Bearable,
    size: tuple[int, int],
) -> _Scan:
    height, width = size
    fits = len(rows) * 3 * height * width <= memory_budget_bytes
    pixels = np.zeros((len(rows), 3, height, width), np.uint8) if fits else None
    known = frozenset(bearable.known)

    def visit(row: int) -> Header | DataError | None:
        if row in known:
            return None
        try:
            if pixels is None:
                return rows.read(row, 3, size)[0] if bearable.at_most else rows.check(row)
            # Grayscale images have three equal channels here; one is kept if all are grayscale.
            header, pixels[row] = rows.read(row, 3, size)
        except DataError as error:
            return error
        return header

    def look() -> Look:
        sizes, grayscale = Sizes.of(first), True
        broken = BrokenImages(rows, bearable.at_most)
        found = map_rows(visit, range(len(rows)), num_threads=num_threads, progress=progress)
        for row, header in enumerate(found):
            if isinstance(header, DataError):
                broken.note(row, header)
            elif header is not None:
                sizes = sizes.with_one(header)
                grayscale = grayscale and header.grayscale
        broken.require_few()
        for told in broken.named:
            logger.warning("%s: left out: %s", rows.source, told)
        return Look(sizes, grayscale, tuple(sorted(known.union(broken.ids))))

    return _Scan(pixels, look() if pixels is not None else looked_at(rows, look, (bearable,)))


def _say_quarantined(rows: ImageRows, ids: tuple[int, ...]) -> None:
    if not ids:
        return
    named = ", ".join(map(str, ids[:_MOST_NAMED]))
    logger.warning(
        "%d of %d images of %s cannot be used and are left out: %s%s",
        len(ids),
        len(rows),
        rows.source,
        named,
        " and more" if len(ids) > _MOST_NAMED else "",
    )
