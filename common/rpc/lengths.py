"""Lengths: the texts of a request, compared with what the contract says of their fields.

One place for all calls: a field that is new in `proto/lipt/v1` is limited before anybody thinks
of it, and more loosely or strictly by its option `max_characters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from lipt.common.errors import InvalidRequestError
from lipt.v1 import limits_pb2

# As limits.proto says.
_CHARACTERS = 200
_ENTRIES = 1000


@dataclass(frozen=True)
class _Limited:
    """A field that is text, a list or map of texts, or a message with such fields."""

    name: str
    # As errors call it: Message.field.
    label: str
    max_characters: int
    max_entries: int


def require_lengths(request: Message) -> None:
    """Refuse texts that are longer, and lists that have more entries, than their fields take.

    Raises:
        InvalidRequestError: names the field, its length and the limit.
    """
    for field in _limited_fields(request.DESCRIPTOR):
        value = getattr(request, field.name)
        if isinstance(value, Message):
            require_lengths(value)
        elif isinstance(value, str):
            _require_text(value, field)
        else:
            _require_entries(value, field)


def _require_entries(value: Any, field: _Limited) -> None:
    entries: Iterable[Any] = [*value, *value.values()] if isinstance(value, Mapping) else value
    num_texts = 0
    for entry in entries:
        if isinstance(entry, Message):
            require_lengths(entry)
            continue
        num_texts += 1
        _require_text(entry, field)
    if num_texts and len(value) > field.max_entries:
        raise InvalidRequestError(
            f"{field.label} has {len(value)} entries; at most {field.max_entries} are taken. "
            "Give fewer."
        )


def _require_text(text: str, field: _Limited) -> None:
    if len(text) > field.max_characters:
        raise InvalidRequestError(
            f"{field.label} has {len(text)} characters; at most {field.max_characters} are taken. "
            "Give a shorter one."
        )


@cache
def _limited_fields(kind: Descriptor) -> tuple[_Limited, ...]:
    return tuple(_limited(kind, field) for field in kind.fields if _has_text(field))


def _has_text(field: FieldDescriptor) -> bool:
    if field.message_type is None:
        return bool(field.type == FieldDescriptor.TYPE_STRING)
    return bool(_limited_fields(field.message_type))


def _limited(kind: Descriptor, field: FieldDescriptor) -> _Limited:
    said: Any = field.GetOptions().Extensions
    return _Limited(
        field.name,
        f"{kind.name}.{field.name}",
        said[limits_pb2.max_characters] or _CHARACTERS,
        said[limits_pb2.max_entries] or _ENTRIES,
    )
