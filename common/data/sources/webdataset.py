"""WebDataset: images and labels in tar shards, read where they lie, in any order.

An index says where each image is. It is made once, in one pass over the headers, and kept; see
`lipt.common.data.sources.index`. Nothing is extracted.
"""

from __future__ import annotations

import io
import itertools
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lipt.common.data.parallel import Progress
from lipt.common.data.sources.image_files import EncodedRows
from lipt.common.data.sources.index import Stamp, kept
from lipt.common.data.sources.remote import Window, is_url
from lipt.common.data.sources.rows import numbered_classes
from lipt.common.data.sources.storage import Storage, read_exactly, storage_of
from lipt.common.data.sources.tables.query import read_query
from lipt.common.data.sources.tar_shards import FORMAT, Convention, TarIndex, build_index
from lipt.common.data.sources.user_labels import labels_of_names
from lipt.common.errors import ConfigError, DataError
from lipt.common.images.decode import decode_file
from lipt.common.images.formats import Header

OPTIONS = ("image", "label", "classes_file")
# Beside the shards, it names their classes where no other file is said to.
CLASSES = "classes.txt"

_MOST_SHARDS = 1_000_000
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")


@dataclass(frozen=True)
class ShardRows(EncodedRows):
    """Image files inside shards."""

    def read(
        self, row: int, channels: int, size: tuple[int, int]
    ) -> tuple[Header, NDArray[np.uint8]]:
        """Decode the image, which is fetched in one read, and fit it to `channels` x `size`."""
        with self._located(row), self.open(row) as file:
            return decode_file(io.BytesIO(file.read()), channels, size)


def webdataset_rows(source: str, path: str, progress: Progress | None = None) -> ShardRows:
    """The samples of tar shards, shards in sorted order and samples as they stand in them.

    Args:
        source: the name under which the user opens them.
        path: a .tar, a directory of them, or several as `shards-{000000..000099}.tar`; a path or
            a URL. After a question mark its options: `image`, the extension of image members;
            `label`, the key of the label in .json members; `classes_file`, a text file with the
            name of a class on each line, else `classes.txt` where it lies beside the shards.
        progress: called with (done, total) samples while the index is made.

    Raises:
        ConfigError: an option or the URL cannot be used.
        DataError: there are no shards, or one of them, or a sample in it, cannot be used.
        MissingExtraError: it is a URL, and fsspec or what it needs is not installed.
    """
    path, query = read_query(source, path, OPTIONS)
    storage = storage_of(source, path)
    shards = _shards(source, storage, path)
    if "classes_file" in query:
        named = [query.text("classes_file", "")]
    else:
        named = _classes_beside(storage, shards)
    of_shards = Stamp.of(shards)
    stamp = Stamp.of([*shards, *named]) if named else of_shards
    convention = Convention(query.text("image", ""), query.text("label", ""))
    index = TarIndex.of(
        kept(
            "webdataset",
            (FORMAT, convention, shards, of_shards.digest),
            lambda: build_index(storage, shards, convention, progress).tensors,
        )
    )
    if len(index.labels_N) == 0:
        raise DataError(f"{source} has no samples. Name shards that hold images and labels.")
    classes = tuple(index.classes[number] for number in range(len(index.classes)))
    names = _lines(source, named[0]) if named else None
    labels_N = index.labels_N
    if classes and names is not None:
        numbers_C, _ = labels_of_names(classes, names, source)
        labels_N = numbers_C[labels_N]
    open_read = _Reading(storage, shards, index)
    return ShardRows(
        source=source,
        names=names or classes or numbered_classes(labels_N, source),
        labels_N=labels_N,
        open=open_read.open,
        where=open_read.where,
        stamp=stamp,
    )


@dataclass(frozen=True)
class _Reading:
    """Reads rows at the places that the index names."""

    storage: Storage
    shards: list[str]
    index: TarIndex

    def open(self, row: int) -> io.BufferedReader:
        shard = self.shards[self.index.shard(row)]
        return Window(
            lambda offset, size: read_exactly(self.storage, shard, offset, size),
            int(self.index.offsets_N[row]),
            int(self.index.sizes_N[row]),
        ).buffered()

    def where(self, row: int) -> str:
        return f"{self.shards[self.index.shard(row)]}, member {self.index.members[row]}"


def _shards(source: str, storage: Storage, path: str) -> list[str]:
    if "{" in path:
        return sorted(dict.fromkeys(itertools.islice(expand_braces(source, path), _MOST_SHARDS)))
    if storage.is_file(path):
        return [path]
    tars = storage.listed(path, ".tar", below=False)
    if tars is None:
        kind = "URL" if is_url(path) else "file or directory"
        raise DataError(
            f"{source}: there is no {kind} {path}. Name a .tar, a directory of them, or several "
            "as shards-{000000..000099}.tar."
        )
    if not tars:
        raise DataError(f"{source}: there is no *.tar in {path}. Name where they are.")
    return tars


def _classes_beside(storage: Storage, shards: list[str]) -> list[str]:
    """The file that names the classes, where shards lie in one folder and it is listed there."""
    folders = {posixpath.dirname(shard) for shard in shards}
    if len(folders) > 1:
        return []
    files = storage.listed(folders.pop(), CLASSES, below=False) or []
    return [file for file in files if posixpath.basename(file) == CLASSES]


def expand_braces(source: str, pattern: str) -> Iterator[str]:
    """The names that a pattern stands for: {000..099} counts, {train,val} lists.

    Raises:
        ConfigError: a brace is not closed, or holds neither.
    """
    match = _BRACES.search(pattern)
    if match is None:
        if "{" in pattern or "}" in pattern:
            raise ConfigError(f"{source}: a brace is left open in {pattern}. Close it.")
        yield pattern
        return
    counted = _RANGE.fullmatch(match[1])
    if counted is not None:
        first, last = int(counted[1]), int(counted[2])
        if not first <= last < first + _MOST_SHARDS:
            raise ConfigError(
                f"{source}: {match[0]} counts {last - first + 1} shards. Write the lower number "
                f"first, and at most {_MOST_SHARDS}."
            )
        width = len(counted[1])
        middles: Iterator[str] = (f"{number:0{width}}" for number in range(first, last + 1))
    elif "," in match[1]:
        middles = iter(match[1].split(","))
    else:
        raise ConfigError(
            f"{source}: {match[0]} stands for nothing. Write a range such as {{000000..000099}}, "
            "or a list such as {a,b}."
        )
    for middle in middles:
        rest = pattern[match.end() :]
        yield from expand_braces(source, pattern[: match.start()] + middle + rest)


def _lines(source: str, name: str) -> tuple[str, ...]:
    storage = storage_of(source, name)
    try:
        content = read_exactly(storage, name, 0, storage.size(name)).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{source}: the names of classes in {name} cannot be read: {error}. Name a text file "
            "with a name on each line."
        ) from error
    return tuple(content.splitlines())
