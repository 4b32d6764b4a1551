"""Samples of a tar shard, in the convention of WebDataset: members whose names begin alike.

`photos/0001.jpg` and `photos/0001.cls` are the image and the label of the sample `photos/0001`:
a name ends at the first dot behind the last slash, and what follows says what the member is. Names
that begin with a dot, or have none, belong to no sample.

Source: Aizman, Maltby & Breuel 2019, "High Performance I/O For Large Scale Deep Learning"
(arXiv:2001.01858).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from lipt.common.data.sources.tar_members import Member
from lipt.common.errors import DataError

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
