"""Loading: a name such as `cifar10:DIR` opens a data set, with every example checked.

For sets that stay encoded, every image's header and end are checked. The result is cached: for a
million remote images the check takes an hour.

Shapes: N examples, B of a block, V values of one, C channels, H x W pixels.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipt.common.determinism import restored_generators
from lipt.common.errors import ConfigError, DataError
from lipt.common.imports import modules_of
from lipt.common.text import encodable, format_bytes, listed
from lipt.data.dataset import Dataset
from lipt.data.images.formats import Header
from lipt.data.inputs.specs import Column, ColumnsSpec, ImageSpec
from lipt.data.parallel import Progress, map_rows, threads_for
from lipt.data.registry import name_with_options, name_with_target, open_rows
from lipt.data.sources.frames import rows_in_memory
from lipt.data.sources.map_style import without_transforms
from lipt.data.sources.rows import (
    ArrayRows,
    ColumnRows,
    EncodedRows,
    ImageRows,
    Rows,
    SourceRows,
    require_labels,
)
from lipt.data.sources.storage import cached_tensors
from lipt.data.targets.kinds import TargetKind

logger = logging.getLogger(__name__)

# Images of different sizes are scaled to ImageNet's usual size.
DEFAULT_SIZE = 224
# Broken images named in a message.
_MOST_NAMED = 20
# Decoded pixels stay in memory up to this size.
MEMORY_BUDGET_BYTES = 2 * 2**30

# Images of one common size keep it up to this many pixels a side. Others are scaled to it where
# there is no GPU: a network at 224 pixels takes twelve times as long.
_MAX_OWN_SIZE = 64
_MAX_SIZE = 4096

# Values checked at a time, to bound memory.
_BLOCK_VALUES = 2**24
# Version of the cached image check; raise it whenever the check or its result changes.
_FORMAT = 5


@restored_generators()
def open_dataset(
    source: str,
    *,
    image_size: int | None = None,
    allowed_modules: Collection[str] = (),
    progress: Progress | None = None,
    memory_budget_bytes: int = MEMORY_BUDGET_BYTES,
    max_corrupt: int = 0,
    quarantined: tuple[int, ...] = (),
    min_classes: int = 2,
) -> Dataset:
    """Open labelled data by one of `known_sources()`, and check every example.

    `image_size` is height and width in pixels; None keeps a common size of at most 64 x 64, else
    takes `default_side`. Images with more than `memory_budget_bytes` of decoded RGB pixels stay
    encoded, and only their headers and ends are checked; with `max_corrupt` all are decoded once,
    and so many may be broken. Images known to be `quarantined` are not read. `progress` is called
    with (done, total) rows, and with tar shards during indexing.
    """
    modules = tuple(allowed_modules)
    ready = open_rows(source, modules, progress)
    if isinstance(ready, Dataset):
        if image_size is not None:
            raise ConfigError(
                f"{source!r} returned data that is open already, of {ready.inputs}. Give the image "
                "size where the data is opened."
            )
        return ready
    return load(
        ready,
        image_size=image_size,
        memory_budget_bytes=memory_budget_bytes,
        progress=progress,
        again=partial(_source_rows, source, modules, progress),
        max_corrupt=max_corrupt,
        quarantined=quarantined,
        min_classes=min_classes,
    )


def open_data(
    data: Any,
    *,
    target: str | None = None,
    image_size: int | None = None,
    allow_modules: Sequence[str] = (),
) -> Dataset:
    """Open labelled data and check every example; the global generators are not used.

    Args:
        data: a map-style data set of (example, label), `(X, y)` arrays or tensors, a data frame of
            pandas, polars or pyarrow, texts with labels, a Hugging Face `datasets.Dataset`, or a
            name: `csv:train.csv?label=COLUMN`, `imagefolder:/data`, `package.module:factory`. A
            `Dataset` is returned unchanged.
        target: a table's column of labels, or of numbers to predict, also of a file: `train.csv`;
            None for one called label. Options, as "prompt=q&completion=a", for next tokens.
            "number" for regression on whole numbers, "multi-label" where each row has one of
            several labels: both are classes otherwise.
        image_size: pixels a side to scale images to; None keeps small images.
        allow_modules: more modules that a name may import.

    Raises:
        UnknownNameError: no data has that name.
        ConfigError: unknown form of data, or an unusable `image_size`.
        DataError: the data is empty, or an example or a label is unusable.
    """
    return open_set("data", data, target, image_size, allow_modules)


@restored_generators()
def open_set(
    source: str,
    data: Any,
    target: str | None = None,
    image_size: int | None = None,
    allow_modules: Sequence[str] = (),
    progress: Progress | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
    min_classes: int = 2,
) -> Dataset:
    """As `open_data`; messages call data in memory `source`. `progress` as in `open_dataset`.

    `options` are a table's, besides those of its name. `min_classes` is what the data must hold.
    """
    if isinstance(data, str | Path):
        name = str(data)
        if target is None:
            name = name_with_options(name, options)
        else:
            name = name_with_target(name, target, options)
        modules = (*allow_modules, *modules_of(name))
        opened = open_dataset(
            name,
            image_size=image_size,
            allowed_modules=modules,
            progress=progress,
            min_classes=min_classes,
        )
        _warn_of_changes(opened)
        return opened
    if isinstance(data, Dataset):
        if target is not None:
            raise ConfigError(
                f"target={target!r} was given together with {data.source}, which is open already. "
                "Give it where the data is opened."
            )
        return data
    given = without_transforms(data)
    again = partial(rows_in_memory, source, given, target=target, options=options)
    opened = load(
        again(progress),
        image_size=image_size,
        progress=progress,
        again=again,
        min_classes=min_classes,
    )
    _warn_of_changes(opened)
    return opened


def _warn_of_changes(opened: Dataset) -> None:
    """Log the note on images, and on texts that are cut."""
    changed = isinstance(opened.inputs, ImageSpec) or opened.target.kind is TargetKind.TOKENS
    if changed and opened.rows.note:
        logger.warning("%s: %s", opened.source, opened.rows.note)


def _source_rows(source: str, allowed_modules: tuple[str, ...], progress: Progress | None) -> Rows:
    opened = open_rows(source, allowed_modules, progress)
    return opened.rows if isinstance(opened, Dataset) else opened


def load(
    rows: SourceRows,
    *,
    image_size: int | None = None,
    progress: Progress | None = None,
    memory_budget_bytes: int = MEMORY_BUDGET_BYTES,
    again: Callable[[], Rows] | None = None,
    max_corrupt: int = 0,
    quarantined: tuple[int, ...] = (),
    min_classes: int = 2,
) -> Dataset:
    """Check every row and build a data set; images get one channel if all are grayscale."""
    if isinstance(rows, ColumnRows):
        return _load_columns(rows, image_size, min_classes)
    _require_size(image_size)
    first = _first_header(rows, quarantined)
    own_size = image_size is None and max(first.height, first.width) <= _MAX_OWN_SIZE
    chosen = image_size or default_side()
    size = (first.height, first.width) if own_size else (chosen, chosen)
    num_threads = threads_for(first.height * first.width) if rows.concurrent else 1

    def scan(size: tuple[int, int]) -> tuple[np.ndarray | None, Mapping[str, Tensor]]:
        fits = len(rows) * 3 * size[0] * size[1] <= memory_budget_bytes
        pixels_NCHW = np.zeros((len(rows), 3, *size), np.uint8) if fits else None

        def visit(row: int) -> Header:
            if pixels_NCHW is None and not max_corrupt:
                return rows.check(row)
            # Grayscale images get three equal channels here; one is kept if all are grayscale.
            header, pixels_CHW = rows.read(row, 3, size)
            if pixels_NCHW is not None:
                pixels_NCHW[row] = pixels_CHW
            return header

        look = partial(_look_at, rows, visit, num_threads, progress, max_corrupt, quarantined)
        if fits or rows.stamp is None or _empty_folders(rows):
            return pixels_NCHW, look()
        files = rows.stamp.paths, rows.stamp.digest
        depends_on = _FORMAT, rows.source, len(rows), *files, max_corrupt, quarantined
        return None, cached_tensors("images", depends_on, look)

    pixels_NCHW, look = scan(size)
    if own_size and not torch.equal(*look["sizes"]):
        size = (default_side(), default_side())
        pixels_NCHW, look = scan(size)
    rows.complete()
    ids = look["quarantined"].tolist()
    if ids:
        logger.warning(
            "%d of %d images of %s cannot be used and are left out: %s",
            *(len(ids), len(rows), rows.source, listed(ids, _MOST_NAMED)),
        )
    require_labels(rows.labels_N, len(rows.class_names), rows.source, min_classes)
    inputs = ImageSpec(1 if bool(look["gray"]) else 3, *size)
    loaded: Rows = rows
    if pixels_NCHW is not None:
        images_NCHW = np.ascontiguousarray(pixels_NCHW[:, : inputs.channels])
        loaded = ArrayRows(
            *(rows.source, rows.class_names, rows.labels_N, images_NCHW),
            targets=rows.targets,
            sources=rows.sources,
            note=rows.note,
        )
    scaling = _scaling_note(look["sizes"], inputs, len(rows), in_memory=loaded is not rows)
    return Dataset(
        loaded,
        rows.fingerprint(),
        inputs,
        num_threads if loaded is rows else 1,
        stamp=rows.stamp,
        again=None if loaded is rows else again,
        note="; ".join(filter(None, (rows.note, scaling))),
        quarantined=tuple(ids),
    )


def default_side() -> int:
    """Pixels a side that large images, or images of several sizes, are scaled to."""
    return DEFAULT_SIZE if torch.cuda.is_available() else _MAX_OWN_SIZE


def _require_size(image_size: int | None) -> None:
    if image_size is not None and not 1 <= image_size <= _MAX_SIZE:
        raise ConfigError(
            f"the image size {image_size} is outside 1..{_MAX_SIZE} pixels. "
            "Choose the size that the model takes, such as 32 or 224."
        )


def _scaling_note(sizes: Tensor, inputs: ImageSpec, num_examples: int, *, in_memory: bool) -> str:
    """The cost of scaling; empty for images at their own size."""
    size = f"{inputs.height} x {inputs.width}"
    low, high = (" x ".join(map(str, side_pair)) for side_pair in sizes.tolist())
    if low == high == size:
        return ""
    sizes_text = f"{low} pixels" if low == high else f"sizes from {low} to {high}"
    where = "in memory" if in_memory else "in all, decoded anew whenever they are needed"
    note = (
        f"its images have {sizes_text} and are scaled to {size}: {format_bytes(inputs.num_bytes)} "
        f"each, {format_bytes(num_examples * inputs.num_bytes)} {where}"
    )
    times = inputs.height * inputs.width / _MAX_OWN_SIZE**2
    slower = f"; a training step takes about {times:.0f} times that of --image-size {_MAX_OWN_SIZE}"
    return note + slower if times > 1 else note


@dataclass(frozen=True)
class UnusableImage:
    """An image that cannot be decoded."""

    id: int
    place: str
    problem: str

    def __str__(self) -> str:
        return f"image {self.id} ({self.place}): {self.problem}"


@dataclass(frozen=True)
class Decoded:
    """Result of decoding all images of a source; `unusable` by ascending id.

    `columns`: how each column of other examples is read.
    """

    source: str
    num_examples: int
    unusable: tuple[UnusableImage, ...]
    empty_folders: tuple[str, ...] = ()
    note: str = ""
    columns: tuple[str, ...] = ()


def decode_all(
    source: str, *, allowed_modules: Collection[str] = (), progress: Progress | None = None
) -> Decoded:
    """Decode every image of a source; damage that the decoder repairs is not found.

    Other examples are checked as whenever they are opened.
    """
    rows = _source_rows(source, tuple(allowed_modules), progress)
    if isinstance(rows, ColumnRows):
        return Decoded(source, len(rows), (), columns=tuple(load(rows).reading))
    if not isinstance(rows, EncodedRows):
        raise DataError(
            f"{source} holds no files; such examples are checked whenever they are opened. Give "
            "image files or a table: imagefolder:PATH, webdataset:PATH, csv:PATH?label=COLUMN."
        )

    def decode(row: int) -> Header:
        return rows.read(row, 3, (DEFAULT_SIZE, DEFAULT_SIZE))[0]

    num_threads = threads_for(DEFAULT_SIZE**2)
    _, broken = _visit_images(rows, decode, range(len(rows)), num_threads, progress)
    return Decoded(source, len(rows), tuple(broken), rows.empty_folders, rows.note)


def _load_columns(rows: ColumnRows, image_size: int | None, min_classes: int) -> Dataset:
    if image_size is not None:
        raise ConfigError(
            f"{rows.source} holds no images, so there is none to scale to {image_size} pixels. "
            "Leave the image size out."
        )
    if len(rows) == 0:
        raise DataError(f"{rows.source} holds no examples. Open data with at least one per class.")
    for column in rows.columns:
        _require_values(rows.tensors[column.name], column, rows.source)
    require_labels(rows.labels_N, len(rows.class_names), rows.source, min_classes)
    spec = ColumnsSpec(rows.columns)
    return Dataset(rows, rows.fingerprint(), spec, stamp=rows.stamp, note=rows.note)


def _require_values(values_N: Tensor, column: Column, source: str) -> None:
    floating = values_N.is_floating_point()
    if not floating and not column.num_values:
        return
    flat_NV = values_N.reshape(len(values_N), -1)
    size = max(1, _BLOCK_VALUES // max(1, flat_NV.shape[1]))
    for start, block_BV in enumerate(torch.split(flat_NV, size)):
        outside_BV = (block_BV < 0) | (block_BV >= column.num_values)
        bad_BV = ~block_BV.isfinite() if floating else outside_BV
        if bool(bad_BV.any()):
            row, place = bad_BV.nonzero()[0].tolist()
            value = block_BV[row, place].item()
            what = "that is not finite" if floating else f"outside 0..{column.num_values - 1}"
            named = f"column {column.name!r}" if column.name else "its tensor"
            raise DataError(
                f"{source}: row {start * size + row} has a value {what} in {named}: {value} at "
                f"position {place}. Correct it."
            )


def _first_header(rows: ImageRows, quarantined: Collection[int]) -> Header:
    for row in range(len(rows)):
        # Broken ones are named later, all together.
        with suppress(DataError):
            if row not in quarantined:
                return rows.check(row)
    return Header(DEFAULT_SIZE, DEFAULT_SIZE, grayscale=False)


def _visit_images(
    rows: ImageRows,
    visit: Callable[[int], Header],
    ids: Sequence[int],
    num_threads: int,
    progress: Progress | None,
) -> tuple[set[Header], list[UnusableImage]]:
    """Visit images: their different formats, and those that are broken."""

    def attempt(row: int) -> Header | UnusableImage:
        try:
            return visit(row)
        except DataError as error:
            if isinstance(rows, EncodedRows):
                return UnusableImage(row, encodable(rows.where(row)), str(error.__cause__ or error))
            raise  # by the user's own function

    headers, broken = set[Header](), list[UnusableImage]()
    for visited in map_rows(attempt, ids, num_threads=num_threads, progress=progress):
        if isinstance(visited, UnusableImage):
            broken.append(visited)
        else:
            headers.add(visited)
    return headers, broken


def _look_at(
    rows: ImageRows,
    visit: Callable[[int], Header],
    num_threads: int,
    progress: Progress | None,
    max_corrupt: int,
    quarantined: Collection[int],
) -> dict[str, Tensor]:
    """Check all images: smallest and largest `sizes`, whether all are `gray`, the `quarantined`.

    Raises a DataError with all broken images and empty classes in a list.
    """
    ids = sorted(set(range(len(rows))) - set(quarantined))
    headers, broken = _visit_images(rows, visit, ids, num_threads, progress)
    empty = _empty_folders(rows)
    if empty or len(broken) > max_corrupt:
        allowed = f", and at most {max_corrupt} may be left out" if max_corrupt else ""
        source, problems = rows.source, list[str]()
        if broken:
            problems.append(f"{len(broken)} of {len(rows)} images of {source} cannot be used")
        if empty:
            problems.append(
                f"{len(empty)} of {len(rows.class_names)} classes of {source} are empty"
            )
        lines = [*(f"no image in {folder}" for folder in empty), *map(str, broken)]
        more = len(lines) - _MOST_NAMED
        if more > 0:
            lines[_MOST_NAMED:] = [f"and {more} more: lipt check --data lists all"]
        raise DataError(
            f"{' and '.join(problems)}{allowed}. Replace them, or remove them and open the data "
            "again:\n" + "\n".join(lines)
        )
    if not headers:
        raise DataError(f"{rows.source} holds no images. Open data with at least one per class.")
    sizes_X2 = torch.tensor([[header.height, header.width] for header in headers])
    return {
        "sizes": torch.stack([sizes_X2.amin(dim=0), sizes_X2.amax(dim=0)]),
        "gray": torch.tensor([all(header.grayscale for header in headers)]),
        "quarantined": torch.tensor(
            sorted({*quarantined, *(image.id for image in broken)}), dtype=torch.int64
        ),
    }


def _empty_folders(rows: ImageRows) -> tuple[str, ...]:
    return rows.empty_folders if isinstance(rows, EncodedRows) else ()
