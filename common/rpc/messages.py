"""Messages: lengths of text fields, and conversions to and from frozen values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from lipt.common.errors import ConfigError, InvalidRequestError
from lipt.v1 import limits_pb2

# As limits.proto says.
_CHARACTERS = 200
_ENTRIES = 1000


@dataclass(frozen=True)
class _Limited:
    name: str
    # As errors call it: Message.field.
    label: str
    max_characters: int
    max_entries: int


def require_lengths(request: Message) -> None:
    """Refuse texts that are longer, and lists that have more entries, than their fields take."""
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


# Enum members have the same names on both sides: `PRUNING_METHOD_SNIP` is "snip".

MessageT = TypeVar("MessageT", bound=Message)


def message_to_dict(message: Message) -> dict[str, Any]:
    """The fields that are set, nested; enums by their member's value ("snip")."""
    values: dict[str, Any] = {}
    for field, value in message.ListFields():
        if isinstance(value, Message):
            values[field.name] = message_to_dict(value)
        elif field.message_type is not None:
            values[field.name] = [message_to_dict(one) for one in value]
        elif field.enum_type is not None:
            values[field.name] = enum_value(field.enum_type, value)
        else:
            values[field.name] = value
    return values


def fill_message(
    message: MessageT,
    values: Mapping[str, Any],
    *,
    path: str = "",
    meant: Callable[[str], str] = lambda _: "",
) -> MessageT:
    """Set the fields of `message` from a nested mapping of the same names."""
    fields = message.DESCRIPTOR.fields_by_name
    for key, value in values.items():
        name = f"{path}{key}"
        field = fields.get(key)
        if field is None:
            known = f"{name}: there is no such setting; there are {', '.join(fields)}"
            raise ConfigError(f"{known}; {asked}" if (asked := meant(name)) else f"{known}.")
        if value is None:
            continue
        if field.message_type is not None and not isinstance(getattr(message, key), Message):
            for number, one in enumerate(value if isinstance(value, list | tuple) else [value]):
                _require_group(one, field, f"{name}.{number}")
                fill_message(getattr(message, key).add(), one, path=f"{name}.{number}.")
        elif field.message_type is not None:
            _require_group(value, field, name)
            getattr(message, key).SetInParent()
            fill_message(getattr(message, key), value, path=f"{name}.", meant=meant)
        else:
            _set_scalar(message, field, value, name)
    return message


def _require_group(value: Any, field: Any, name: str) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{name} = {value!r}: it is a group of settings; set one of "
            f"{', '.join(field.message_type.fields_by_name)} in it."
        )


def _set_scalar(message: Message, field: Any, value: Any, name: str) -> None:
    if field.enum_type is not None:
        value = enum_number(field.enum_type, str(value), name)
    try:
        if isinstance(value, tuple | list):
            getattr(message, field.name).extend(value)
        else:
            setattr(message, field.name, value)
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{name} = {value!r}: {error}") from None


def _prefix(enum: EnumDescriptor) -> str:
    # PRUNING_METHOD_UNSPECIFIED -> PRUNING_METHOD_
    return enum.values_by_number[0].name.removesuffix("UNSPECIFIED")


def enum_value(enum: EnumDescriptor, number: int) -> str:
    """The member's value for a number of the wire: 2 -> "snip"; an unknown number as text."""
    member = enum.values_by_number.get(number)
    return member.name.removeprefix(_prefix(enum)).lower() if member else str(number)


def enum_number(enum: EnumDescriptor, value: str, name: str) -> int:
    """The number on the wire for a member's value: "snip" -> 2."""
    member = enum.values_by_name.get(f"{_prefix(enum)}{value.upper()}")
    if member is None or member.number == 0:
        known = [enum_value(enum, item.number) for item in enum.values if item.number]
        raise ConfigError(f"{name} = {value!r}: choose one of {', '.join(known)}.")
    return int(member.number)


def enum_to_proto(enum: EnumDescriptor, value: StrEnum) -> str:
    """The name on the wire for a member, as messages' constructors take it."""
    name: str = enum.values_by_number[enum_number(enum, value.value, enum.name)].name
    return name


# Peers whose majors differ refuse each other; a higher minor only adds.
PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0

# Measured on loopback: 4 MiB messages are slower, 64 KiB ones cost more calls.
CHUNK_BYTES = 256 * 1024
