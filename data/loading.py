"""Loading: a name such as `cifar10:DIR` opens a data set, with every example checked.

For sets that stay encoded, every image's header and end are checked. The result is cached: for a
million remote images the check takes an hour.

Shapes: N examples, B of a block, V values of one, C channels, H x W pixels.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipt.common.determinism import restored_generators
from lipt.common.errors import ConfigError, DataError, UnknownNameError
from lipt.common.imports import call_factory, load_factory, module_of, modules_of
from lipt.common.text import did_you_mean, format_bytes, listed
from lipt.data.dataset import Dataset
from lipt.data.image_check import (
    DEFAULT_SIZE,
    MOST_NAMED,
    UnusableImage,
    empty_folders,
    first_header,
    look_at,
    visit_images,
)
from lipt.data.images.formats import Header
from lipt.data.inputs.specs import Column, ColumnsSpec, ImageSpec
from lipt.data.parallel import Progress, threads_for
from lipt.data.sources.files import (
    BUNDLED,
    bundled_rows,
    cifar_rows,
    distilled_rows,
    features_rows,
)
from lipt.data.sources.folders import imagefolder_rows
from lipt.data.sources.frames import query_of, rows_in_memory
from lipt.data.sources.map_style import without_transforms
from lipt.data.sources.pairs import pairs_rows
from lipt.data.sources.rows import (
    ArrayRows,
    ColumnRows,
    EncodedRows,
    ImageRows,
    Rows,
    require_labels,
)
from lipt.data.sources.storage import (
    at_home,
    cached_tensors,
    is_url,
    require_name,
    split_query,
)
from lipt.data.sources.table_files import CsvOptions, open_table, parquet_rows
from lipt.data.sources.tables import table_rows
from lipt.data.sources.webdataset import webdataset_rows

logger = logging.getLogger(__name__)

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

_Rows = ImageRows | ColumnRows


def _parquet_rows(source: str, path: str) -> _Rows:
    table = "?" in path and (is_url(path) or not Path(path).exists())
    return table_rows(source, path) if table else parquet_rows(source, path)


_WITH_PATH: Mapping[str, Callable[[str, str], _Rows]] = MappingProxyType(
    {
        **dict.fromkeys(("cifar10", "cifar10-test", "cifar100", "cifar100-test"), cifar_rows),
        "imagefolder": imagefolder_rows,
        **dict.fromkeys(("csv", "jsonl"), table_rows),
        "features": features_rows,
        "distilled": distilled_rows,
        "parquet": _parquet_rows,
    }
)
# How files are named that were given as a path.
_BY_SUFFIX: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys((".csv", ".csv.gz"), "csv:{}?label=COLUMN"),
        ".tsv": "csv:{}?label=COLUMN",
        **dict.fromkeys((".jsonl", ".ndjson"), "jsonl:{}?label=COLUMN"),
        ".parquet": "parquet:{}?label=COLUMN",
        ".safetensors": "features:{}",
        ".tar": "webdataset:{}",
    }
)


def known_sources() -> tuple[str, ...]:
    with_path = (f"{name}:PATH" for name in (*_WITH_PATH, "webdataset"))
    pairs = "pairs:PATH?image_tower=package.module:factory&text_tower=package.module:factory"
    return (*BUNDLED, *with_path, pairs, "package.module:factory")


def open_rows(
    source: str, allowed_modules: Collection[str], progress: Progress | None
) -> Dataset | _Rows:
    """A source's rows, unchecked, or a factory's own `Dataset`."""
    require_name(source)
    name, colon, path = source.partition(":")
    if name in BUNDLED:
        if colon:
            raise ConfigError(f"the data set {name} takes no path, not {path!r}. Write {name}.")
        return bundled_rows(source)
    if name in _WITH_PATH or name in {"webdataset", "pairs"}:
        if not path:
            raise ConfigError(
                f"{source!r} does not say where the data is. Write {name}:PATH, for example "
                f"{name}:/data."
            )
        path = path if is_url(path) else at_home(path)
        if name == "webdataset":
            return webdataset_rows(source, path, progress)
        if name == "pairs":
            return pairs_rows(source, path, allowed_modules, progress)
        return _WITH_PATH[name](source, path)
    if module_of(source):
        data = call_factory(source, load_factory(source, allowed_modules=allowed_modules))
        return data if isinstance(data, Dataset) else rows_in_memory(source, data, progress)
    raise UnknownNameError(
        f"there is no data set {source!r}.{_meant(source)} There are: {', '.join(known_sources())}."
    )


def name_with_target(source: str, target: str) -> str:
    """The name of a table file, `train.csv` or `csv:train.csv`, with its target's column."""
    require_name(source)
    kind, colon, path = source.partition(":")
    suffix = next((known for known in _BY_SUFFIX if source.lower().endswith(known)), "")
    template = f"{kind}:{{}}?label=COLUMN"
    if kind not in ("csv", "jsonl", "parquet") or not colon:
        path, template = source, _BY_SUFFIX.get(suffix, "")
    given = {part.partition("=")[0] for part in path.partition("?")[2].split("&") if part}
    kind = template.partition(":")[0]
    known = CsvOptions.NAMES if kind == "csv" else ()
    if "COLUMN" not in template or given - set(known):
        raise ConfigError(
            f"target={target!r} was given together with the name {source!r}, which is no table's "
            "file alone. Give a file, such as train.csv, or write the target into the name: "
            "csv:PATH?label=COLUMN."
        )
    path, asked = split_query(source, at_home(path), known)
    query = query_of(open_table(path, kind, asked), target)
    written = "".join(f"{name}={value}&" for name, value in asked.values.items())
    return f"{kind}:{path}?{written}{query}"


def _meant(source: str) -> str:
    """A question with the name that opens a path, or with names that are alike; or ""."""
    for suffix, name in _BY_SUFFIX.items():
        if source.lower().endswith(suffix):
            return f" Did you mean {name.format(source)}?"
    if "/" not in source.partition(":")[0] and ":" in source:
        return did_you_mean(source.partition(":")[0], (*_WITH_PATH, "webdataset", "pairs"))
    if source and os.path.isdir(at_home(source)):  # noqa: PTH112 - as `at_home`
        return f" Did you mean imagefolder:{source}?"
    return did_you_mean(source, BUNDLED)


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
) -> Dataset:
    """Open labelled data by one of `known_sources()`, and check every example.

    `image_size` is height and width in pixels; None keeps a common size of at most 64 x 64, else
    takes `default_side`. Images with more than `memory_budget_bytes` of decoded RGB pixels stay
    encoded, and only their headers and ends are checked; with `max_corrupt` all are decoded once,
    and so many may be broken. Images known to be `quarantined` are not read. `progress` is called
    with (done, total) rows, and with tar shards during indexing.
    """
    modules = tuple(allowed_modules)
    found = open_rows(source, modules, progress)
    if isinstance(found, Dataset):
        if image_size is not None:
            raise ConfigError(
                f"{source!r} returned data that is open already, of {found.inputs}. Give the image "
                "size where the data is opened."
            )
        return found
    return load(
        found,
        image_size=image_size,
        memory_budget_bytes=memory_budget_bytes,
        progress=progress,
        again=partial(_source_rows, source, modules, progress),
        max_corrupt=max_corrupt,
        quarantined=quarantined,
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
            None for one called label. "number" for regression on whole numbers, "multi-label" where
            each row has one of several labels: both are classes otherwise.
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
) -> Dataset:
    """As `open_data`; messages call data in memory `source`. `progress` as in `open_dataset`."""
    if isinstance(data, str | Path):
        name = str(data) if target is None else name_with_target(str(data), target)
        modules = (*allow_modules, *modules_of(name))
        opened = open_dataset(
            name, image_size=image_size, allowed_modules=modules, progress=progress
        )
        if isinstance(opened.inputs, ImageSpec) and opened.rows.note:
            logger.warning("%s: %s", opened.source, opened.rows.note)
        return opened
    if isinstance(data, Dataset):
        if target is not None:
            raise ConfigError(
                f"target={target!r} was given together with {data.source}, which is open already. "
                "Give it where the data is opened."
            )
        return data
    again = partial(rows_in_memory, source, without_transforms(data), target=target)
    return load(again(progress), image_size=image_size, progress=progress, again=again)


def _source_rows(source: str, allowed_modules: tuple[str, ...], progress: Progress | None) -> Rows:
    found = open_rows(source, allowed_modules, progress)
    return found.rows if isinstance(found, Dataset) else found


def load(
    rows: _Rows,
    *,
    image_size: int | None = None,
    progress: Progress | None = None,
    memory_budget_bytes: int = MEMORY_BUDGET_BYTES,
    again: Callable[[], Rows] | None = None,
    max_corrupt: int = 0,
    quarantined: tuple[int, ...] = (),
) -> Dataset:
    """Check every row and build a data set; images get one channel if all are grayscale."""
    if isinstance(rows, ColumnRows):
        return _load_columns(rows, image_size, again)
    _require_size(image_size)
    first = first_header(rows, quarantined)
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

        look = partial(look_at, rows, visit, num_threads, progress, max_corrupt, quarantined)
        if fits or rows.stamp is None or empty_folders(rows):
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
            *(len(ids), len(rows), rows.source, listed(ids, MOST_NAMED)),
        )
    require_labels(rows.labels_N, len(rows.class_names), rows.source)
    inputs = ImageSpec(1 if bool(look["gray"]) else 3, *size)
    loaded: Rows = rows
    if pixels_NCHW is not None:
        images_NCHW = np.ascontiguousarray(pixels_NCHW[:, : inputs.channels])
        loaded = ArrayRows(
            *(rows.source, rows.class_names, rows.labels_N, images_NCHW),
            targets=rows.targets,
            note=rows.note,
        )
    scaling = _scaling_note(look["sizes"], inputs, len(rows), in_memory=loaded is not rows)
    return Dataset(
        loaded,
        rows.fingerprint(),
        inputs,
        num_threads if loaded is rows else 1,
        stamp=rows.stamp,
        again=again,
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
    low, high = (" x ".join(map(str, one)) for one in sizes.tolist())
    if low == high == size:
        return ""
    found = f"{low} pixels" if low == high else f"sizes from {low} to {high}"
    where = "in memory" if in_memory else "in all, decoded anew whenever they are needed"
    note = (
        f"its images have {found} and are scaled to {size}: {format_bytes(inputs.num_bytes)} "
        f"each, {format_bytes(num_examples * inputs.num_bytes)} {where}"
    )
    times = inputs.height * inputs.width / _MAX_OWN_SIZE**2
    slower = f"; a training step takes about {times:.0f} times that of --image-size {_MAX_OWN_SIZE}"
    return note + slower if times > 1 else note


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
    _, broken = visit_images(rows, decode, range(len(rows)), num_threads, progress)
    return Decoded(source, len(rows), tuple(broken), rows.empty_folders, rows.note)


def _load_columns(
    rows: ColumnRows, image_size: int | None, again: Callable[[], Rows] | None
) -> Dataset:
    if image_size is not None:
        raise ConfigError(
            f"{rows.source} holds no images, so there is none to scale to {image_size} pixels. "
            "Leave the image size out."
        )
    if len(rows) == 0:
        raise DataError(f"{rows.source} holds no examples. Open data with at least one per class.")
    for column in rows.columns:
        _require_values(rows.tensors[column.name], column, rows.source)
    require_labels(rows.labels_N, len(rows.class_names), rows.source)
    spec = ColumnsSpec(rows.columns)
    return Dataset(rows, rows.fingerprint(), spec, stamp=rows.stamp, again=again, note=rows.note)


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
