"""Registry of data sets: a name such as `cifar10:DIR?train` opens one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lipt.common.data.dataset import Dataset
from lipt.common.data.loading import (
    MEMORY_BUDGET_BYTES,
    NONE_BROKEN,
    Bearable,
    full_fingerprint,
    load,
    load_columns,
)
from lipt.common.data.parallel import Progress, map_rows, threads_for
from lipt.common.data.sources.bundled import (
    BUNDLED_TABLES,
    PYDOCS,
    bundled_table_rows,
    digits_rows,
    pydocs_rows,
)
from lipt.common.data.sources.feature_file import features_rows
from lipt.common.data.sources.image_files import (
    EncodedRows,
    cifar_rows,
    distilled_rows,
    imagefolder_rows,
)
from lipt.common.data.sources.pairs import pairs_rows
from lipt.common.data.sources.parquet import parquet_rows
from lipt.common.data.sources.rows import ColumnRows, ImageRows, Rows
from lipt.common.data.sources.storage import is_url
from lipt.common.data.sources.tables import csv_rows, jsonl_rows, parquet_table_rows
from lipt.common.data.sources.user_data import data_of_factory, rows_of_data
from lipt.common.data.sources.webdataset import webdataset_rows
from lipt.common.errors import ConfigError, DataError, UnknownNameError
from lipt.common.imports import is_factory_spec

_Rows = ImageRows | ColumnRows

_WITHOUT_PATH: Mapping[str, Callable[[str], _Rows]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("digits", "digits-train", "digits-test", "digits-mislabelled"), digits_rows
        ),
        **dict.fromkeys(BUNDLED_TABLES, bundled_table_rows),
        **dict.fromkeys(PYDOCS, pydocs_rows),
    }
)
_WITH_PATH: Mapping[str, Callable[[str, Path], _Rows]] = MappingProxyType(
    {
        **dict.fromkeys(("cifar10", "cifar10-test", "cifar100", "cifar100-test"), cifar_rows),
        "imagefolder": imagefolder_rows,
        "csv": csv_rows,
        "jsonl": jsonl_rows,
        "features": features_rows,
        "distilled": distilled_rows,
    }
)


def _parquet_rows(source: str, path: str, _progress: Progress | None) -> _Rows:
    """Images, or a table where options say what its columns are."""
    table = "?" in path and (is_url(path) or not Path(path).exists())
    return parquet_table_rows(source, path) if table else parquet_rows(source, path)


# These read URLs as well, and report progress.
_WITH_URL: Mapping[str, Callable[[str, str, Progress | None], _Rows]] = MappingProxyType(
    {"parquet": _parquet_rows, "webdataset": webdataset_rows}
)
# Its options name code, which has to be allowed.
_PAIRS = "pairs"

# Whether a file can be decoded does not depend on the size; most models see this one.
_DECODED_SIZE = (224, 224)


def known_sources() -> tuple[str, ...]:
    """The names of data sets, for messages and listings."""
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
        UnknownNameError, FactoryNotAllowedError: there is no such data set, or its module is not
            allowed.
        MissingExtraError: the source needs a package that is not installed.
        ConfigError: the source lacks its path, the factory or `image_size` cannot be used.
        DataError: the data is missing, empty, or holds an example that cannot be used.
    """
    again = partial(open_rows, source, tuple(allowed_modules), progress)
    found = again()
    if isinstance(found, Dataset):
        if image_size is not None:
            raise ConfigError(
                f"{source!r} returned data that is open already, of {found.inputs}. Give the image "
                "size where the data is opened."
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
    """A program's own map-style data set, as `open_dataset` opens a factory's.

    Raises:
        ConfigError, DataError: it is not map-style, or an example cannot be used.
    """
    again = partial(rows_of_data, name, data, progress)
    return _loaded(again(), again, image_size, memory_budget_bytes, progress)


def _loaded(
    rows: _Rows,
    again: Callable[[], Dataset | _Rows],
    image_size: int | None,
    memory_budget_bytes: int,
    progress: Progress | None,
    bearable: Bearable = NONE_BROKEN,
) -> Dataset:
    # From the source once more: what lies in memory may be scaled.
    reopen = partial(_source_rows, again)
    read_all = partial(_read_all, again, progress)
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


def _source_rows(again: Callable[[], Dataset | _Rows]) -> Rows:
    found = again()
    return found.rows if isinstance(found, Dataset) else found


def _read_all(again: Callable[[], Dataset | _Rows], progress: Progress | None) -> str:
    return full_fingerprint(_source_rows(again), progress)


def open_rows(
    source: str, allowed_modules: Collection[str], progress: Progress | None
) -> Dataset | _Rows:
    """A source's rows before its examples are looked at, or a factory's own `Dataset`.

    Arguments and errors as `open_dataset`, but for those of single examples.
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


@dataclass(frozen=True)
class UnusableImage:
    """An image that cannot be decoded."""

    id: int
    place: str
    problem: str


@dataclass(frozen=True)
class Decoded:
    """The result of decoding all images of a source, those that failed by ascending id."""

    source: str
    num_images: int
    unusable: tuple[UnusableImage, ...]


def decode_all(
    source: str, *, allowed_modules: Collection[str] = (), progress: Progress | None = None
) -> Decoded:
    """Decode every image of a source, whether it can be opened as a data set or not.

    To open a large set is to read its images' headers and ends, which a file passes that is broken
    in its middle. What a decoder makes up for, as of a JPEG damaged in its middle, is not found.
    """
    found = open_rows(source, allowed_modules, progress)
    rows = found.rows if isinstance(found, Dataset) else found
    if not isinstance(rows, EncodedRows):
        raise DataError(
            f"{source} holds no image files; other examples are checked whenever they are opened. "
            "Give image files: imagefolder:PATH, webdataset:PATH or parquet:PATH."
        )

    def problem_of(row: int) -> UnusableImage | None:
        try:
            rows.read(row, 3, _DECODED_SIZE)
        except DataError as error:
            return UnusableImage(row, rows.where(row), str(error.__cause__ or error))
        return None

    height, width = _DECODED_SIZE
    num_threads = threads_for(height * width) if rows.concurrent else 1
    problems = map_rows(problem_of, range(len(rows)), num_threads=num_threads, progress=progress)
    return Decoded(source, len(rows), tuple(found for found in problems if found is not None))
