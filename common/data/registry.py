"""Registry: a data name such as `cifar10:DIR?train` opens a data set."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from lipt.common.data.dataset import Dataset
from lipt.common.data.fingerprinting import fingerprint
from lipt.common.data.loading import (
    MEMORY_BUDGET_BYTES,
    NONE_BROKEN,
    Bearable,
    full_fingerprint,
    load,
)
from lipt.common.data.parallel import Progress
from lipt.common.data.sources.bundled import (
    BUNDLED_TABLES,
    PYDOCS,
    bundled_table_rows,
    digits_rows,
    pydocs_rows,
)
from lipt.common.data.sources.distilled import distilled_rows
from lipt.common.data.sources.feature_file import features_rows
from lipt.common.data.sources.image_files import cifar_rows, imagefolder_rows
from lipt.common.data.sources.pairs.rows import pairs_rows
from lipt.common.data.sources.parquet import parquet_rows
from lipt.common.data.sources.rows import ColumnRows, ImageRows, Rows, require_labels
from lipt.common.data.sources.storage import is_url
from lipt.common.data.sources.tables.rows import csv_rows, jsonl_rows, parquet_table_rows
from lipt.common.data.sources.user_data import data_of_factory, rows_of_data
from lipt.common.data.sources.webdataset import webdataset_rows
from lipt.common.errors import ConfigError, DataError, UnknownNameError
from lipt.common.imports import is_factory_spec
from lipt.common.inputs.columns import Column
from lipt.common.inputs.specs import ColumnsSpec

# Loading of columns: examples that are no images made into a data set, every value looked at.
#
# Shapes: N examples, B of a block, V values of one.

# Of values that are looked at together: what comes of them takes memory as well.
_BLOCK_VALUES = 2**24


def load_columns(
    rows: ColumnRows, *, image_size: int | None, read_all: Callable[[], str] | None = None
) -> Dataset:
    """Check every value and make a data set of them.

    Args:
        rows: where the examples come from.
        image_size: has to be None.
        read_all: as in `Dataset`.

    Raises:
        ConfigError: an image size was asked for, or the columns cannot be given together.
        DataError: there are no rows, a value is not finite or outside its column's range, or a
            label is no class's number.
    """
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
    num_classes = len(rows.class_names)
    digest = fingerprint(rows.labels_N, num_classes, rows.raw, targets=rows.targets)
    return Dataset(rows, digest, ColumnsSpec(rows.columns), stamp=rows.stamp, read_all=read_all)


def _require_values(values_N: Tensor, column: Column, num_rows: int, source: str) -> None:
    if values_N.dtype != column.type.dtype or tuple(values_N.shape) != (num_rows, *column.shape):
        raise DataError(
            f"{source}: column {column} of {num_rows} rows holds {values_N.dtype} of shape "
            f"{tuple(values_N.shape)}. Read it as what it is."
        )
    flat_NV = values_N.reshape(num_rows, -1)
    if values_N.is_floating_point():
        bad_N = _each(flat_NV, lambda block_BV: ~block_BV.isfinite())
        what = "a value that is not finite"
        remedy = "Fill in or remove what is missing."
    elif column.num_values:
        bad_N = _each(flat_NV, lambda block_BV: (block_BV < 0) | (block_BV >= column.num_values))
        what = f"a value outside 0..{column.num_values - 1}"
        remedy = "Number the values from 0, and say how many there are."
    else:
        return
    if bool(bad_N.any()):
        row = int(bad_N.to(torch.uint8).argmax())
        named = f"column {column.name!r}" if column.name else "its tensor"
        raise DataError(f"{source}: row {row} has {what} in {named}. {remedy}")


def _each(flat_NV: Tensor, is_bad: Callable[[Tensor], Tensor]) -> Tensor:
    """Whether a row has a bad value; N, looked at in blocks."""
    size = max(1, _BLOCK_VALUES // max(1, flat_NV.shape[1]))
    starts = range(0, len(flat_NV), size)
    return torch.cat([is_bad(flat_NV[start : start + size]).any(dim=1) for start in starts])


# Registry of data sets: the built-in ones by name, and the user's own.

_WITHOUT_PATH: Mapping[str, Callable[[str], ImageRows | ColumnRows]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("digits", "digits-train", "digits-test", "digits-mislabelled"), digits_rows
        ),
        **dict.fromkeys(BUNDLED_TABLES, bundled_table_rows),
        **dict.fromkeys(PYDOCS, pydocs_rows),
    }
)


def _parquet_rows(source: str, path: str, _progress: Progress | None) -> ImageRows | ColumnRows:
    """Images, or a table where options say what its columns are."""
    table = "?" in path and (is_url(path) or not Path(path).exists())
    return parquet_table_rows(source, path) if table else parquet_rows(source, path)


_WITH_PATH: Mapping[str, Callable[[str, Path], ImageRows | ColumnRows]] = MappingProxyType(
    {
        **dict.fromkeys(("cifar10", "cifar10-test", "cifar100", "cifar100-test"), cifar_rows),
        "imagefolder": imagefolder_rows,
        "csv": csv_rows,
        "jsonl": jsonl_rows,
        "features": features_rows,
        "distilled": distilled_rows,
    }
)

# These read URLs as well, and say how far they are.
_WITH_URL: Mapping[str, Callable[[str, str, Progress | None], ImageRows | ColumnRows]] = (
    MappingProxyType({"parquet": _parquet_rows, "webdataset": webdataset_rows})
)

# Its options name code, which has to be allowed.
_PAIRS = "pairs"


def known_sources() -> tuple[str, ...]:
    """What a data set may be called, for messages and listings."""
    with_path = (f"{name}:PATH" for name in (*_WITH_PATH, *_WITH_URL))
    pairs = "pairs:PATH?image_tower=package.module:factory&text_tower=package.module:factory"
    return (*_WITHOUT_PATH, *with_path, pairs, "package.module:factory")


def open_dataset(
    source: str,
    *,
    image_size: int | None = None,
    allowed_modules: Collection[str] = (),
    progress: Progress | None = None,
    memory_budget_bytes: int = MEMORY_BUDGET_BYTES,
    bearable: Bearable = NONE_BROKEN,
) -> Dataset:
    """Open labelled data and check every example of it.

    Args:
        source: one of `known_sources()`; a path may begin with ~.
        image_size: height and width in pixels that the model sees of images; None keeps their
            own size where all have one of at most 64 x 64, and takes 224 otherwise.
        allowed_modules: modules whose factories may be imported; each allows its submodules.
        progress: called with (done, total) rows at least once a second while rows are read,
            also where that is later, for the full fingerprint.
        memory_budget_bytes: image sets whose decoded pixels, as RGB, are larger stay encoded
            and are decoded when they are used; of their images only header and end are checked.
        bearable: which image files may be broken: `quarantined` in what is returned.

    Raises:
        UnknownNameError: there is no such data set; the message lists those that there are.
        FactoryNotAllowedError: `source` names a factory in a module that is not allowed.
        MissingExtraError: the source needs a package that is not installed.
        ConfigError: the source lacks its path, the factory or `image_size` cannot be used.
        DataError: the data is missing, empty, or holds a broken image, a value that no model
            can be given, or a wrong label.
    """
    again = partial(open_rows, source, tuple(allowed_modules), progress)
    found = again()
    if isinstance(found, Dataset):
        if image_size is not None:
            raise ConfigError(
                f"{source!r} returned data that is open already, of {found.inputs}. Leave the "
                "image size out, and give it where the data is opened."
            )
        return found
    return _loaded(found, again, image_size, memory_budget_bytes, progress, bearable)


def dataset_of(
    data: Any,
    *,
    name: str = "data",
    image_size: int | None = None,
    progress: Progress | None = None,
    memory_budget_bytes: int = MEMORY_BUDGET_BYTES,
) -> Dataset:
    """A program's own map-style data set, as `open_dataset` opens what a factory returns.

    Args:
        data: rows of (example, label).
        name: what messages call it.
        image_size: as in `open_dataset`.
        progress: as in `open_dataset`.
        memory_budget_bytes: as in `open_dataset`.

    Raises:
        ConfigError: it is not map-style, or `image_size` cannot be used.
        DataError: it is empty, or an example cannot be used.
    """
    again = partial(rows_of_data, name, data, progress)
    return _loaded(again(), again, image_size, memory_budget_bytes, progress)


def _loaded(
    rows: ImageRows | ColumnRows,
    again: Callable[[], Dataset | ImageRows | ColumnRows],
    image_size: int | None,
    memory_budget_bytes: int,
    progress: Progress | None,
    bearable: Bearable = NONE_BROKEN,
) -> Dataset:
    # From the source once more: what lies in memory may be scaled.
    reopen = partial(_source_rows, again)
    read_all = partial(_read_all, reopen, progress)
    if isinstance(rows, ColumnRows):
        return load_columns(rows, image_size=image_size, read_all=read_all)
    loaded = load(
        rows,
        image_size=image_size,
        memory_budget_bytes=memory_budget_bytes,
        progress=progress,
        read_all=read_all,
        bearable=bearable,
    )
    return loaded if loaded.rows is rows else replace(loaded, reopen=reopen)


def _source_rows(again: Callable[[], Dataset | ImageRows | ColumnRows]) -> Rows:
    found = again()
    return found.rows if isinstance(found, Dataset) else found


def _read_all(reopen: Callable[[], Rows], progress: Progress | None) -> str:
    return full_fingerprint(reopen(), progress)


def open_rows(
    source: str, allowed_modules: Collection[str], progress: Progress | None
) -> Dataset | ImageRows | ColumnRows:
    """What a source holds, before its examples are looked at.

    Args:
        source: as in `open_dataset`.
        allowed_modules: likewise.
        progress: likewise.

    Returns:
        Its rows, or what a factory has opened itself.

    Raises:
        LiptError: as `open_dataset`, but for what is wrong with single examples.
    """
    name, colon, path = source.partition(":")
    if name in _WITHOUT_PATH:
        if colon:
            raise ConfigError(f"the data set {name} takes no path, not {path!r}. Write {name}.")
        return _WITHOUT_PATH[name](source)
    if name in _WITH_PATH or name in _WITH_URL or name == _PAIRS:
        if not path:
            raise ConfigError(
                f"{source!r} does not say where the data is. Write {name}:PATH, for example "
                f"{name}:/data."
            )
        if name == _PAIRS:
            return pairs_rows(source, Path(path).expanduser(), allowed_modules, progress)
        if name in _WITH_URL:
            place = path if is_url(path) else str(Path(path).expanduser())
            return _WITH_URL[name](source, place, progress)
        return _WITH_PATH[name](source, Path(path).expanduser())
    if is_factory_spec(source):
        data = data_of_factory(source, allowed_modules)
        return data if isinstance(data, Dataset) else rows_of_data(source, data, progress)
    raise UnknownNameError(
        f"there is no data set {source!r}. There are: {', '.join(known_sources())}."
    )
