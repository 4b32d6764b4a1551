"""Loading: a source's rows made into a data set, with every image checked.

Here it is decided at which size a model sees the images, whether they stay in memory, and which
are left out because they are broken.

Shapes: N images, C channels, H x W pixels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from lipt.common.config.fingerprint_kind import FingerprintKind
from lipt.common.data.broken import BrokenImages
from lipt.common.data.dataset import Dataset, in_memory
from lipt.common.data.fingerprinting import fingerprint
from lipt.common.data.looked_at import Look, looked_at
from lipt.common.data.parallel import Progress, map_rows, threads_for
from lipt.common.data.scaling import MAX_OWN_SIZE, Sizes, scaling_note
from lipt.common.data.sources.rows import ImageRows, Rows, require_labels
from lipt.common.errors import ConfigError, DataError
from lipt.common.images.formats import Header
from lipt.common.inputs.specs import ImageSpec

logger = logging.getLogger(__name__)

# Decoded pixels up to this size stay in memory.
MEMORY_BUDGET_BYTES = 2 * 2**30

# What images get that do not keep their own size: that of ImageNet models.
_DEFAULT_SIZE = 224
_MAX_SIZE = 4096

# For hashing files, whose bytes come from a disk or a network.
_NUM_HASHING_THREADS = 4

_MOST_NAMED = 20


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
