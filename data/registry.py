"""Registry: the schemes of data by name, each with its reader, its options and its files' suffixes.

Messages, the reading of names and the lists of sources follow `SOURCES`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lipt.common.errors import ConfigError, UnknownNameError
from lipt.common.imports import call_factory, load_factory, module_of
from lipt.common.text import did_you_mean
from lipt.data.dataset import Dataset
from lipt.data.parallel import Progress
from lipt.data.sources.address import Address, at_home, quoted_names
from lipt.data.sources.files import (
    BUNDLED,
    bundled_rows,
    cifar_rows,
    distilled_rows,
    features_rows,
)
from lipt.data.sources.folders import imagefolder_rows
from lipt.data.sources.frames import rows_in_memory
from lipt.data.sources.pairs import PAIR_OPTIONS, pairs_rows
from lipt.data.sources.rows import SourceRows
from lipt.data.sources.tables.csv_and_json import CSV_OPTIONS
from lipt.data.sources.tables.parquet import parquet_rows
from lipt.data.sources.tables.reading import TABLE_OPTIONS, open_table, table_rows
from lipt.data.sources.tables.recognition import table_options
from lipt.data.sources.webdataset import webdataset_rows


class Source(NamedTuple):
    """A scheme of data.

    Attributes:
        read: takes the address, and `takes`: "progress", "allowed_modules".
        options: names of the options after a question mark.
        usual: options that an example of a name has.
        suffixes: of files that are meant where a path stands for the name.
        path: whether the scheme needs a path, else takes none.
    """

    read: Callable[..., SourceRows]
    options: tuple[str, ...] = ()
    usual: str = ""
    suffixes: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    path: bool = True

    def named(self, scheme: str, path: str) -> str:
        if not self.path:
            return scheme
        return f"{scheme}:{path}{'?' if self.usual else ''}{self.usual}"


def _parquet(address: Address) -> SourceRows:
    return table_rows(address) if set(address.values) - {"source"} else parquet_rows(address)


_LABEL = "label=COLUMN"
_CSV_SUFFIXES = tuple(
    f".{kind}{packed}" for kind in ("csv", "tsv", "txt") for packed in ("", ".gz")
)
_TOWERS = "image_tower=package.module:factory&text_tower=package.module:factory"
SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        **dict.fromkeys(BUNDLED, Source(bundled_rows, path=False)),
        "cifar10": Source(cifar_rows),
        "cifar10-test": Source(cifar_rows),
        "cifar100": Source(cifar_rows),
        "cifar100-test": Source(cifar_rows),
        "imagefolder": Source(imagefolder_rows, ("source",)),
        "csv": Source(table_rows, (*TABLE_OPTIONS, *CSV_OPTIONS), _LABEL, _CSV_SUFFIXES),
        "jsonl": Source(table_rows, TABLE_OPTIONS, _LABEL, (".jsonl", ".ndjson")),
        "parquet": Source(_parquet, TABLE_OPTIONS, _LABEL, (".parquet",)),
        "features": Source(features_rows, ("standardize",), suffixes=(".safetensors",)),
        "distilled": Source(distilled_rows),
        "webdataset": Source(
            webdataset_rows, ("image", "label"), suffixes=(".tar",), takes=("progress",)
        ),
        "pairs": Source(pairs_rows, PAIR_OPTIONS, _TOWERS, takes=("progress", "allowed_modules")),
    }
)


def known_sources() -> tuple[str, ...]:
    named = (source.named(scheme, "PATH") for scheme, source in SOURCES.items())
    return (*named, "package.module:factory")


def open_rows(
    source: str, allowed_modules: Collection[str], progress: Progress | None
) -> Dataset | SourceRows:
    """A source's rows, unchecked, or a factory's own `Dataset`."""
    scheme = source.partition(":")[0]
    known = SOURCES.get(scheme)
    address = Address.parse(source, () if known is None else known.options)
    if known is not None:
        if not known.path and source != scheme:
            raise ConfigError(
                f"the data set {scheme} takes no path, not {address.path!r}. Write {scheme}."
            )
        if known.path and not address.path:
            raise ConfigError(
                f"{source!r} does not say where the data is. Write {scheme}:PATH, for example "
                f"{scheme}:/data."
            )
        given: dict[str, Any] = {"allowed_modules": allowed_modules, "progress": progress}
        return known.read(address, **{name: given[name] for name in known.takes})
    if module_of(source):
        data = call_factory(source, load_factory(source, allowed_modules=allowed_modules))
        return data if isinstance(data, Dataset) else rows_in_memory(source, data, progress)
    raise UnknownNameError(
        f"there is no data set {source!r}.{_meant(source)} There are: {', '.join(known_sources())}."
    )


def _of_suffix(path: str) -> str:
    """The scheme that reads a file of such a suffix, or ""."""
    return next((n for n, known in SOURCES.items() if path.lower().endswith(known.suffixes)), "")


def _meant(source: str) -> str:
    """A question with the name that opens a path, or with names that are alike; or ""."""
    if scheme := _of_suffix(source):
        return f" Did you mean {SOURCES[scheme].named(scheme, source)}?"
    scheme, colon, _ = source.partition(":")
    if colon and "/" not in scheme:
        return did_you_mean(scheme, [name for name, known in SOURCES.items() if known.path])
    if source and os.path.isdir(at_home(source)):  # noqa: PTH112 - as `at_home`
        return f" Did you mean imagefolder:{source}?"
    return did_you_mean(source, BUNDLED)


def table_address(source: str) -> Address | None:
    """The address of a table's file, `train.csv` or `csv:train.csv`; None of other data."""
    scheme, colon, _ = source.partition(":")
    name, tables = source, [name for name, known in SOURCES.items() if known.usual == _LABEL]
    if scheme not in tables or not colon:
        scheme = _of_suffix(source)
        name = f"{scheme}:{source}"
    if scheme in tables:
        return Address.parse(name, SOURCES[scheme].options)
    Address.parse(source)  # refuses a name that no file has
    return None


def plain_table(source: str) -> Address | None:
    """The address of a table's file that does not say itself what its columns are; else None."""
    address = table_address(source)
    return None if address is None or set(address.values) - {*CSV_OPTIONS} else address


def name_with_target(
    source: str, target: str, more: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The name of a table's file with its target's column, and more options."""
    address = plain_table(source)
    if address is None:
        raise ConfigError(
            f"target={target!r} was given together with the name {source!r}, which is no table's "
            "file alone. Give a file, such as train.csv, or write the target into the name: "
            "csv:PATH?label=COLUMN."
        )
    return str(address.adding(**table_options(open_table(address), target, more)))


def names_sources(source: str) -> bool:
    """Whether a name of data says what names the source of each example."""
    return "source" in _address_of(source)


def _address_of(source: str) -> Address:
    return table_address(source) or Address.parse(source, _options_of(source.partition(":")[0]))


def _options_of(scheme: str) -> tuple[str, ...]:
    return SOURCES[scheme].options if scheme in SOURCES else ()


def name_with_options(source: str, options: Mapping[str, str]) -> str:
    """The name of a table's file with options that it does not have; of image folders, `source`."""
    if not options:
        return source
    address = _address_of(source)
    if options.keys() - _options_of(address.scheme):
        raise ConfigError(
            f"{', '.join(options)} was given together with the name {source!r:.80}, which is no "
            "table's file. Leave it out, or give a table, such as csv:PATH?label=COLUMN."
        )
    return str(
        address.adding(**{name: text for name, text in options.items() if name not in address})
    )


def name_with_csv_options(source: str, **options: str) -> str:
    """The name of a CSV file with those of `CSV_OPTIONS` that are not empty."""
    given = {name: value for name, value in options.items() if value}
    address = table_address(source) if given else None
    if given and (address is None or address.scheme != "csv"):
        name, value = next(iter(given.items()))
        raise ConfigError(
            f"{name}={value} is an option of CSV files, and {source!r:.80} names other data. Leave "
            "it out, or write csv:PATH."
        )
    quoted = {name: quoted_names([value]) for name, value in given.items()}
    return source if address is None else str(address.adding(**quoted))
