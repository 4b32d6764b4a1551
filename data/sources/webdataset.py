"""WebDataset: images and labels in tar shards, read in place, in any order.

`photos/0001.jpg` and `photos/0001.cls` are image and label of the sample `photos/0001`. Names that
begin with a dot or have none are ignored. One pass over the headers builds an index of image
offsets, which is cached. Truncated files, trailing content and sizes beyond the file are refused;
the standard library ignores them.

Shapes: N samples, S shards, C classes that have names.
Source: Aizman, Maltby & Breuel 2019, "High Performance I/O For Large Scale Deep Learning"
(arXiv:2001.01858).
"""

from __future__ import annotations

import io
import itertools
import json
import posixpath
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lipt.common.errors import ConfigError, DataError
from lipt.data.images.formats import SUFFIXES
from lipt.data.parallel import Progress, map_rows
from lipt.data.sources.address import Address
from lipt.data.sources.rows import EncodedRows, labels_of_names
from lipt.data.sources.storage import (
    Stamp,
    Storage,
    Window,
    cached_tensors,
    read_exactly,
    read_lines,
    storage_of,
)

# File of class names beside the shards.
CLASSES = "classes.txt"

# Version of the index; raise it whenever shards would be read differently.
_FORMAT = 3
# Characters of a member's name in messages.
_SHOWN_BYTES = 200
_MOST_SHARDS = 1_000_000
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_NAME = re.compile(r"(?P<key>(?:.*/)?[^./][^./]*)\.(?P<extension>[^/]+)", re.DOTALL)
_MOST_LABEL_BYTES = 2**20
_LARGEST_LABEL = 2**63 - 1
# A header takes 512 bytes; long names and PAX records take more.
_MOST_AT_ONCE = 2**20


def webdataset_rows(address: Address, progress: Progress | None = None) -> EncodedRows:
    """The samples of tar shards: shards in sorted order, samples in file order.

    `path` is a .tar, a directory of them, or a pattern as `shards-{000000..000099}.tar`, on disk or
    at a URL. Options: `image`, the extension of image members; `label`, the label's key in .json
    members. A file `classes.txt` beside the shards has a class name on each line.
    """
    source, path = address.source, address.path
    storage = storage_of(source, path)
    shards = _shards(source, storage, path)
    named = _classes_beside(storage, shards)
    of_shards = Stamp.of(shards)
    image, label = address.text("image"), address.text("label")

    def build_index() -> Mapping[str, Tensor]:
        def samples(number: int) -> list[_Sample]:
            return _Shard(storage, shards[number], image, label).samples()

        numbers, num_threads = range(len(shards)), storage.threads
        samples_by_shard = map_rows(samples, numbers, num_threads=num_threads, progress=progress)
        return _tensors(shards, list(samples_by_shard))

    index = cached_tensors(
        "webdataset", (_FORMAT, image, label, shards, of_shards.digest), build_index
    )
    labels_N = index["labels"]
    classes = tuple(json.loads(index["classes"].numpy().tobytes()))
    if len(labels_N) == 0:
        raise DataError(f"{source} has no samples. Name shards that hold images and labels.")
    names = tuple(read_lines(source, named)) if named else None
    if classes and names is not None:
        labels_N = labels_of_names(classes, names, source)[0][labels_N]

    def shard_of(row: int) -> str:
        return shards[_shard_number(index["ends"], row)]

    def open_row(row: int) -> io.BufferedReader:
        read = partial(read_exactly, storage, shard_of(row))
        return Window(read, int(index["offsets"][row]), int(index["sizes"][row])).buffered()

    return EncodedRows(
        *(source, names or classes or None, labels_N),
        open=open_row,
        where=lambda row: f"{shard_of(row)}, member {_text(index['members'][row])}",
        stamp=Stamp.of([*shards, named]) if named else of_shards,
    )


def _shard_number(ends_S: Tensor, row: int) -> int:
    return int(np.searchsorted(ends_S.numpy(), row, side="right"))


def _shards(source: str, storage: Storage, path: str) -> list[str]:
    if "{" in path:
        return sorted(dict.fromkeys(itertools.islice(expand_braces(source, path), _MOST_SHARDS)))
    if storage.is_file(path):
        return [path]
    tars = storage.listed(path, ".tar", below=False)
    if not tars:
        raise DataError(
            f"{source}: {path} is no file, and there is no *.tar in it. Name a .tar, a directory "
            "of them, or several as shards-{000000..000099}.tar."
        )
    return tars


def expand_braces(source: str, pattern: str) -> Iterator[str]:
    """Expand a pattern: {000..099} counts, {train,val} lists."""
    # Odd positions are the contents of braces.
    parts = _BRACES.split(pattern)
    if any("{" in text or "}" in text for text in parts[::2]):
        raise ConfigError(f"{source}: a brace is left open in {pattern}. Close it.")
    choices = [
        _choices(source, text) if number % 2 else [text] for number, text in enumerate(parts)
    ]
    return map("".join, itertools.product(*choices))


def _choices(source: str, text: str) -> list[str]:
    counted = _RANGE.fullmatch(text)
    if counted is None and "," in text:
        return text.split(",")
    first, last = (int(counted[1]), int(counted[2])) if counted else (0, -1)
    if counted is None or not first <= last < first + _MOST_SHARDS:
        raise ConfigError(
            f"{source}: {{{text}}} stands for no shards. Write a list such as {{a,b}}, or a range "
            f"of at most {_MOST_SHARDS} such as {{000000..000099}}, the lower number first."
        )
    return [f"{number:0{len(counted[1])}}" for number in range(first, last + 1)]


def _classes_beside(storage: Storage, shards: list[str]) -> str:
    folders = {posixpath.dirname(shard) for shard in shards}
    files = (storage.listed(folders.pop(), CLASSES, below=False)) if len(folders) == 1 else []
    return next((file for file in files if posixpath.basename(file) == CLASSES), "")


def _tensors(
    shards: Sequence[str], samples_by_shard: Sequence[list[_Sample]]
) -> Mapping[str, Tensor]:
    samples = [sample for of_shard in samples_by_shard for sample in of_shard]
    ends_S = torch.tensor(
        [len(of_shard) for of_shard in samples_by_shard], dtype=torch.int64
    ).cumsum(0)
    labels, classes = [sample.label for sample in samples], tuple[str, ...]()
    named = [row for row, label in enumerate(labels) if isinstance(label, str)]
    if 0 < len(named) < len(labels):
        row = named[0]
        raise DataError(
            f"the label of {samples[row].name!r:.200} in {shards[_shard_number(ends_S, row)]} is a "
            "class's name, and that of others a number. Write labels of one kind."
        )
    if named:
        labels_N, classes = labels_of_names(list(map(str, labels)), None, "")
    else:
        labels_N = torch.tensor(labels, dtype=torch.int64)
    names = np.array([s.name.encode(errors="replace")[-_SHOWN_BYTES:] for s in samples], "S")
    return {
        "offsets": torch.tensor([s.offset for s in samples], dtype=torch.int64),
        "sizes": torch.tensor([s.size for s in samples], dtype=torch.int64),
        "labels": labels_N,
        "ends": ends_S,
        # Rows of one width, padded with zeros.
        "members": torch.from_numpy(names.view(np.uint8).reshape(len(names), names.itemsize)),
        "classes": torch.frombuffer(bytearray(json.dumps(classes).encode()), dtype=torch.uint8),
    }


def _text(letters: Tensor) -> str:
    return letters.numpy().tobytes().rstrip(b"\0").decode(errors="replace")


class _Sample(NamedTuple):
    name: str
    offset: int
    size: int
    label: int | str


@dataclass(frozen=True)
class _Shard:
    """One tar file; reads only headers and label members."""

    storage: Storage
    name: str
    image: str
    label: str

    def samples(self) -> list[_Sample]:
        named = (
            (match["key"], match["extension"].lower(), member)
            for member in self._members()
            if (match := _NAME.fullmatch(member.name)) is not None
        )
        samples: dict[str, _Sample] = {}
        for key, group in itertools.groupby(named, key=lambda pair: pair[0]):
            members: dict[str, tarfile.TarInfo] = {}
            for _, extension, member in group:
                if extension in members or key in samples:
                    raise self._refused(
                        f"{_called(member)} is there twice, or stands apart from others of its "
                        "sample. Write a sample's members one after another, each once."
                    )
                members[extension] = member
            image, label = self._image_of(key, members), self._label_of(key, members)
            samples[key] = _Sample(image.name, image.offset_data, image.size, label)
        return list(samples.values())

    def _image_of(self, key: str, members: Mapping[str, tarfile.TarInfo]) -> tarfile.TarInfo:
        suffix = self.image.lower().removeprefix(".")
        fitting = [
            extension
            for extension in members
            if extension == suffix or (not suffix and f".{extension}".endswith(SUFFIXES))
        ]
        if len(fitting) != 1:
            raise self._refused(
                f"the sample {key!r:.200}, with .{', .'.join(members)}, has {len(fitting)} "
                f"{f'members called .{suffix}' if suffix else 'images'}. Give every sample one, "
                "a file and no link, and name its extension with image=EXTENSION."
            )
        return members[fitting[0]]

    def _label_of(self, key: str, members: Mapping[str, tarfile.TarInfo]) -> int | str:
        extensions = ("json",) if self.label else ("cls", "json")
        extension = next((name for name in extensions if name in members), None)
        if extension is None:
            raise self._refused(
                f"the sample {key!r:.200}, with .{', .'.join(members)}, has no label: there is no "
                f".{' or .'.join(extensions)} of that name. Add it, or leave the sample out."
            )
        member = members[extension]
        size = min(member.size, _MOST_LABEL_BYTES)
        content = read_exactly(self.storage, self.name, member.offset_data, size)
        label: object = None
        try:
            as_json = extension == "json"
            label = json.loads(content)[self.label or "label"] if as_json else int(content)
        except (ValueError, RecursionError, LookupError, TypeError):
            pass
        if isinstance(label, str) or (type(label) is int and abs(label) <= _LARGEST_LABEL):
            return label
        raise self._refused(
            f"{_called(member)} holds {content[:80]!r} in place of a class number. Write the "
            "number as text, or the number or class name in a .json member, under the key that "
            "label=KEY names."
        )

    def _members(self) -> Iterator[tarfile.TarInfo]:
        """All regular files, from one pass over the headers."""
        last, behind = -1, "nothing"
        try:
            size = self.storage.size(self.name)
            file = Window(self._read, 0, size).buffered()
            # tarfile reads any other file object from start to end.
            archive = tarfile.open(  # noqa: SIM115 - nothing in it has to be closed
                fileobj=file, mode="r:", encoding="utf-8"
            )
            while (info := archive.next()) is not None:
                behind = _called(info)
                end = info.offset_data + info.size
                # Offsets must rise: a negative size would loop forever.
                if info.size < 0 or info.offset_data <= last or end > size:
                    raise ValueError(f"this member ends at byte {end} of {size}")  # noqa: TRY301
                last = info.offset_data
                # tarfile would otherwise keep all members.
                archive.members.clear()  # type: ignore[attr-defined]
                if info.isreg() and not info.issparse():
                    yield info
            tail = self.storage.read(self.name, archive.offset, tarfile.BLOCKSIZE)
            if len(tail) < tarfile.BLOCKSIZE or any(tail):
                raise ValueError(f"at byte {archive.offset} there is no header and no end")  # noqa: TRY301
        # tarfile can raise nearly anything on a broken file.
        except Exception as error:
            raise self._refused(
                f"it is cut off or damaged behind {behind}: {error}. Make the shard again, or "
                "fetch it again. A compressed one has to be unpacked to a plain .tar."
            ) from error

    def _read(self, offset: int, size: int) -> bytes:
        if size > _MOST_AT_ONCE:
            raise ValueError(f"a header at byte {offset} claims {size} bytes of names")
        return self.storage.read(self.name, offset, size)

    def _refused(self, what: str) -> DataError:
        return DataError(f"{self.name}: {what}")


def _called(member: tarfile.TarInfo) -> str:
    return f"the member {member.name!r:.200}"
