"""Tar shards: members, the samples they form, and an index of both."""

from __future__ import annotations

import json
import re
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import groupby
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lipt.common.data.parallel import Progress
from lipt.common.data.sources.index import PackedNames
from lipt.common.data.sources.remote import Window
from lipt.common.data.sources.storage import Storage, read_exactly
from lipt.common.errors import DataError

# Members of a tar file: where each lies, from one pass over the headers, which reads no content.
#
# The standard library reads the headers: GNU's and PAX's long names, and sizes past 8 GiB. What it
# passes over in silence is refused here: a file that is cut off or goes on with something else, and
# sizes that lead outside of it.

# Headers take 512 bytes; a long name, or what PAX has to say of a member, some more.
_MOST_AT_ONCE = 2**20
_AGAIN = "Make the shard again, or fetch it again."


@dataclass(frozen=True)
class Member:
    """One entry of a tar file.

    Attributes:
        name: with its folders.
        offset: of its content, bytes from the file's start.
        size: of its content.
        kind: "file", or what it is in place of one, in words.
    """

    name: str
    offset: int
    size: int
    kind: str


def members_of(shard: str, read: Callable[[int, int], bytes], size: int) -> Iterator[Member]:
    """All entries but folders, in their order.

    Args:
        shard: the tar file's name, for messages.
        read: gives a range, by its offset and size; shorter where the file ends. Raises OSError.
        size: of the tar file.

    Raises:
        DataError: it is no tar file, it is cut off or damaged, or cannot be read.
    """
    file = Window(_limited(shard, read), 0, size).buffered()
    last, name = -1, ""
    try:
        # A file object of any other kind would be read from its start to its end.
        archive = tarfile.open(  # noqa: SIM115 - nothing in it has to be closed
            fileobj=file, mode="r:", encoding="utf-8"
        )
        while (info := archive.next()) is not None:
            name = info.name
            _require_inside(shard, info, last, size)
            last = info.offset_data
            # It would keep them all.
            archive.members.clear()  # type: ignore[attr-defined]
            if not info.isdir():
                yield Member(name, info.offset_data, info.size, _kind(info))
        after = archive.offset
        block = read(after, tarfile.BLOCKSIZE)
    except DataError:
        raise
    # A broken file can make the standard library raise nearly anything.
    except Exception as error:
        raise DataError(
            f"{shard} cannot be read as a tar file{_behind(name)}: {error}. {_AGAIN} A compressed "
            "one has to be unpacked to a plain .tar, in which single members can be read."
        ) from error
    if len(block) < tarfile.BLOCKSIZE or any(block):
        what = "something that is no header" if block else "nothing"
        raise DataError(
            f"{shard}: at byte {after}{_behind(name)} there is {what} in place of a tar file's "
            f"end: the shard is cut off or damaged. {_AGAIN}"
        )


def _require_inside(shard: str, info: tarfile.TarInfo, last: int, size: int) -> None:
    end = info.offset_data + info.size
    # Each lies behind the one before: a size below 0 would lead back to it for ever.
    if info.size < 0 or info.offset_data <= last or end > size:
        raise DataError(
            f"{shard}: the member {info.name!r:.200} ends at byte {end} of {size}: the shard is "
            f"cut off or damaged. {_AGAIN}"
        )


def _limited(shard: str, read: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
    def read_some(offset: int, size: int) -> bytes:
        if size > _MOST_AT_ONCE:
            raise DataError(
                f"{shard}: a header at byte {offset} claims {size} bytes of names: the shard is "
                f"damaged. {_AGAIN}"
            )
        return read(offset, size)

    return read_some


def _behind(name: str) -> str:
    return f", behind the member {name!r:.200}," if name else ""


def _kind(info: tarfile.TarInfo) -> str:
    if info.issparse():
        return "a sparse file, whose holes are left out of the shard"
    if info.issym() or info.islnk():
        return f"a link to {info.linkname!r:.200}"
    return "file" if info.isreg() else "no file, but a device or a pipe"


# Samples of a tar shard, in the convention of WebDataset: members whose names begin alike.
#
# `photos/0001.jpg` and `photos/0001.cls` are the image and the label of the sample `photos/0001`: a
# name ends at the first dot behind the last slash, and what follows says what the member is. Names
# that begin with a dot, or have none, belong to no sample.
#
# Source: Aizman, Maltby & Breuel 2019, "High Performance I/O For Large Scale Deep Learning"
# (arXiv:2001.01858).

_NAME = re.compile(r"(?P<key>(?:.*/)?[^./][^./]*)\.(?P<extension>[^/]+)", re.DOTALL)
_IMAGES = frozenset(
    ("jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", "gif"),
)
_MOST_LABEL_BYTES = 2**20
_DEFAULT_KEY = "label"
_LARGEST = 2**63 - 1

ReadMember = Callable[[Member], bytes]


@dataclass(frozen=True)
class Convention:
    """What members are called.

    Attributes:
        image: the extension of image members; empty takes the only one that is an image's.
        label: the key of the label in .json members; empty takes .cls members where there are
            any, else the key "label".
    """

    image: str = ""
    label: str = ""


@dataclass(frozen=True)
class Sample:
    """An image member and its label, a class's number or its name."""

    image: Member
    label: int | str


def samples_of(
    shard: str, members: Iterable[Member], convention: Convention, read: ReadMember
) -> Iterator[Sample]:
    """The samples of one shard, in order.

    Args:
        shard: its name, for messages.
        members: of the shard.
        convention: what they are called.
        read: gives a member's content; called for labels alone.

    Raises:
        DataError: a sample has no image or no label, several of them, or one that cannot be used;
            or its members do not stand together.
    """
    seen: set[str] = set()
    for key, group in groupby(_named(members), key=lambda named: named[0]):
        extensions = [(extension, member) for _, extension, member in group]
        found = dict(extensions)
        if key in seen:
            raise DataError(
                f"{shard}: the member {extensions[0][1].name!r:.200} stands apart from others of "
                "its sample, or its sample is there twice. Write a sample's members one behind "
                "the other, and give every sample a name of its own."
            )
        seen.add(key)
        for extension, member in extensions:
            if found[extension] is not member:
                raise DataError(
                    f"{shard}: the member {member.name!r:.200} is there twice. Leave one out."
                )
        image = _image_of(shard, key, found, convention)
        yield Sample(image, _label_of(shard, key, found, convention, read))


def _named(members: Iterable[Member]) -> Iterator[tuple[str, str, Member]]:
    for member in members:
        match = _NAME.fullmatch(member.name)
        if match is not None:
            yield match["key"], match["extension"].lower(), member


def _image_of(
    shard: str, key: str, members: Mapping[str, Member], convention: Convention
) -> Member:
    wanted = convention.image.lower().removeprefix(".")
    fitting = [
        extension
        for extension in members
        if extension == wanted or (not wanted and extension.rpartition(".")[2] in _IMAGES)
    ]
    if len(fitting) == 1:
        return _file(shard, members[fitting[0]])
    if not fitting:
        what = f"called .{wanted}" if wanted else "that is an image"
        remedy = "Give every sample one, or name its extension with image=EXTENSION."
    else:
        what = f"that is the only image: there are .{' and .'.join(fitting)}"
        remedy = f"Name the one to use, such as image={fitting[0]}."
    raise DataError(
        f"{shard}: the sample {key!r:.200}, with .{', .'.join(members)}, has no member {what}. "
        f"{remedy}"
    )


def _label_of(
    shard: str,
    key: str,
    members: Mapping[str, Member],
    convention: Convention,
    read: ReadMember,
) -> int | str:
    cls, described = members.get("cls"), members.get("json")
    if cls is not None and not convention.label:
        return _class_number(shard, cls, _content(shard, cls, read))
    if described is not None:
        name = convention.label or _DEFAULT_KEY
        return _in_json(shard, described, name, _content(shard, described, read))
    lacking = ".json" if convention.label else ".cls or .json"
    raise DataError(
        f"{shard}: the sample {key!r:.200}, with .{', .'.join(members)}, has no label: there is "
        f"no {lacking} of that name. Add it, or leave the sample out."
    )


def _content(shard: str, member: Member, read: ReadMember) -> bytes:
    _file(shard, member)
    if member.size > _MOST_LABEL_BYTES:
        raise DataError(
            f"{shard}: the member {member.name!r:.200} has {member.size} bytes, a label's has at "
            f"most {_MOST_LABEL_BYTES}. Keep what else it holds in another member."
        )
    return read(member)


def _file(shard: str, member: Member) -> Member:
    if member.kind != "file":
        raise DataError(
            f"{shard}: the member {member.name!r:.200} is {member.kind}. Store the file itself."
        )
    return member


def _class_number(shard: str, member: Member, content: bytes) -> int:
    text = content.strip()
    if re.fullmatch(rb"-?[0-9]{1,19}", text) and abs(int(text)) <= _LARGEST:
        return int(text)
    raise DataError(
        f"{shard}: the member {member.name!r:.200} holds {content[:40]!r} in place of a class's "
        "number. Write the number as text; names of classes can stand in .json members."
    )


def _in_json(shard: str, member: Member, key: str, content: bytes) -> int | str:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{shard}: the member {member.name!r:.200} is no JSON: {error}. Write it again."
        ) from error
    if not isinstance(values, dict) or key not in values:
        has = ", ".join(map(repr, values)) if isinstance(values, dict) else type(values).__name__
        raise DataError(
            f"{shard}: the member {member.name!r:.200} has no {key!r}, but {has:.200}. Name the "
            "key of the label with label=KEY."
        )
    label = values[key]
    if isinstance(label, str) or (type(label) is int and abs(label) <= _LARGEST):
        return label
    raise DataError(
        f"{shard}: the member {member.name!r:.200} has {key!r}: {label!r:.80}, which is neither "
        "a class's number nor its name. Write one of them."
    )


# Index of tar shards: where every image lies and what its label is, from one pass over headers.
#
# Shapes: N samples, S shards, C classes that have names.

# What the tensors mean; raised whenever shards would be read otherwise.
FORMAT = 1

_REPORT_SECONDS = 0.2
_REPORT_SAMPLES = 100


@dataclass(frozen=True)
class TarIndex:
    """Samples by row number, shards in order and samples as they stand in them.

    Attributes:
        offsets_N: int64, where each image begins in its shard.
        sizes_N: int64, bytes.
        labels_N: int64.
        ends_S: int64, the number of samples in a shard and those before it.
        members: the names of the image members.
        classes: the names of the labels, sorted; none where labels are numbers.
    """

    offsets_N: Tensor
    sizes_N: Tensor
    labels_N: Tensor
    ends_S: Tensor
    members: PackedNames
    classes: PackedNames

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """What `tensors` has made."""
        return cls(
            tensors["offsets"],
            tensors["sizes"],
            tensors["labels"],
            tensors["ends"],
            PackedNames(tensors["members"], tensors["member_ends"]),
            PackedNames(tensors["classes"], tensors["class_ends"]),
        )

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All of it, to be kept."""
        return {
            "offsets": self.offsets_N,
            "sizes": self.sizes_N,
            "labels": self.labels_N,
            "ends": self.ends_S,
            "members": self.members.letters,
            "member_ends": self.members.ends_N,
            "classes": self.classes.letters,
            "class_ends": self.classes.ends_N,
        }

    def shard(self, row: int) -> int:
        """The number of the shard that a row is in."""
        return _shard(self.ends_S, row)


@dataclass
class _Walked:
    """How far all the shards have been gone through together."""

    total_bytes: int
    num_bytes: int = 0
    num_samples: int = 0
    stopped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, num_bytes: int, num_samples: int) -> None:
        with self.lock:
            self.num_bytes += num_bytes
            self.num_samples += num_samples

    def report(self, progress: Progress) -> None:
        """Samples so far, of as many as there will be where the others are as large."""
        if self.num_samples and self.num_bytes:
            expected = round(self.num_samples * self.total_bytes / self.num_bytes)
            progress(self.num_samples, max(self.num_samples, expected))


def build_index(
    storage: Storage, shards: Sequence[str], convention: Convention, progress: Progress | None
) -> TarIndex:
    """Go through the headers of all shards, and read the members that labels are in.

    Args:
        storage: where the shards lie.
        shards: their names, in order.
        convention: what members are called.
        progress: called with (done, total) samples, of which the total is estimated.

    Raises:
        DataError: a shard or a sample in it cannot be used; names them.
    """
    sizes = [_size(storage, shard) for shard in shards]
    walked = _Walked(sum(sizes))
    with ThreadPoolExecutor(storage.threads, thread_name_prefix="index") as executor:
        futures = [
            executor.submit(_samples, storage, shard, size, convention, walked)
            for shard, size in zip(shards, sizes, strict=True)
        ]
        try:
            while True:
                done, pending = wait(futures, _REPORT_SECONDS, return_when=FIRST_EXCEPTION)
                if progress is not None:
                    walked.report(progress)
                if not pending or any(future.exception() for future in done):
                    break
            # The first in the shards' order: those before it are waited for.
            found = [future.result() for future in futures]
        finally:
            walked.stopped = True
            executor.shutdown(wait=True, cancel_futures=True)
    return _joined(shards, found)


def _size(storage: Storage, shard: str) -> int:
    try:
        return storage.size(shard)
    except OSError as error:
        raise DataError(f"{shard} cannot be read: {error}. Name shards that are there.") from error


def _samples(
    storage: Storage, shard: str, size: int, convention: Convention, walked: _Walked
) -> list[Sample]:
    members = members_of(shard, lambda offset, some: storage.read(shard, offset, some), size)
    found: list[Sample] = []
    counted_bytes = counted = 0
    samples = samples_of(
        shard,
        members,
        convention,
        lambda member: read_exactly(storage, shard, member.offset, member.size),
    )
    for sample in samples:
        found.append(sample)
        if len(found) % _REPORT_SAMPLES == 0:
            reached = sample.image.offset
            walked.add(reached - counted_bytes, len(found) - counted)
            counted_bytes, counted = reached, len(found)
            if walked.stopped:
                return found
    walked.add(size - counted_bytes, len(found) - counted)
    return found


def _joined(shards: Sequence[str], found: Sequence[list[Sample]]) -> TarIndex:
    samples = [sample for of_shard in found for sample in of_shard]
    ends_S = torch.tensor([len(of_shard) for of_shard in found], dtype=torch.int64).cumsum(0)
    kinds = {type(sample.label): row for row, sample in enumerate(samples)}
    if len(kinds) > 1:
        one, other = (
            f"{samples[row].image.name!r:.200} in {shards[_shard(ends_S, row)]}"
            for row in (kinds[str], kinds[int])
        )
        raise DataError(
            f"the label of {one} is a class's name, and that of {other} a number. Write labels "
            "of one kind."
        )
    classes = sorted({str(sample.label) for sample in samples}) if str in kinds else []
    numbers = {name: number for number, name in enumerate(classes)}
    labels = [numbers[s.label] if isinstance(s.label, str) else s.label for s in samples]
    return TarIndex(
        offsets_N=torch.tensor([sample.image.offset for sample in samples], dtype=torch.int64),
        sizes_N=torch.tensor([sample.image.size for sample in samples], dtype=torch.int64),
        labels_N=torch.tensor(labels, dtype=torch.int64),
        ends_S=ends_S,
        members=PackedNames.of(sample.image.name for sample in samples),
        classes=PackedNames.of(classes),
    )


def _shard(ends_S: Tensor, row: int) -> int:
    return int(np.searchsorted(ends_S.numpy(), row, side="right"))
