"""Messages: text length limits, conversions to and from frozen values, and calls without a span."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from lipt.common.errors import ConfigError, InvalidRequestError
from lipt.v1 import limits_pb2

# The default limit in limits.proto.
_CHARACTERS = 200
_ENTRIES = 1000
# Calls that only wait, or are frequent.
_SPANLESS = frozenset(
    {
        "/lipt.v1.InfoService/GetInfo",
        "/lipt.v1.RunService/GetRun",
        "/lipt.v1.RunService/ListRuns",
        "/lipt.v1.RunService/WatchRun",
        "/lipt.v1.WorkerService/AcquireAssignment",
        "/lipt.v1.WorkerService/Heartbeat",
        "/lipt.v1.WorkerService/Register",
    }
)


def is_spanless(method: str) -> bool:
    """Whether calls of a method (`/package.Service/Method`) get no span."""
    return method in _SPANLESS or not method.startswith("/lipt.v1.")


def require_lengths(request: Message) -> None:
    """Refuse texts and lists over their fields' limits."""
    for field, value in request.ListFields():
        if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            continue
        single = isinstance(value, str | Message)
        if isinstance(value, Mapping):
            parts = [*value, *value.values()]
        else:
            parts = [value] if single else list(value)
        characters, entries = _limits(field)
        for part in parts:
            if isinstance(part, Message):
                require_lengths(part)
            else:
                _require_at_most(characters, len(part), "characters", field)
        if not single and not (isinstance(parts[0], Message) and entries is None):
            _require_at_most(entries or _ENTRIES, len(value), "entries", field)


def _require_at_most(most: int, length: int, unit: str, field: Any) -> None:
    if length > most:
        raise InvalidRequestError(
            f"{field.containing_type.name}.{field.name} has {length} {unit}; at most {most} are "
            "taken. Give less."
        )


@cache
def _limits(field: FieldDescriptor) -> tuple[int, int | None]:
    """Characters of a text, and entries of a list if the field says so."""
    said: Any = field.GetOptions().Extensions
    characters, entries = said[limits_pb2.max_characters], said[limits_pb2.max_entries]
    return characters or _CHARACTERS, entries or None


# Enum members have the same names on both sides: `PRUNING_METHOD_SNIP` is "snip".

MessageT = TypeVar("MessageT", bound=Message)


def message_to_dict(message: Message) -> dict[str, Any]:
    """A message's values, nested, without unset fields and empty lists; enums as their values."""
    values: dict[str, Any] = {}
    fields: Iterable[Any] = message.DESCRIPTOR.fields
    for field in fields:
        value = getattr(message, field.name)
        if field.has_presence and not message.HasField(field.name):
            continue
        if isinstance(value, Message):
            values[field.name] = message_to_dict(value)
        elif field.enum_type is not None:
            values[field.name] = enum_value(field.enum_type, value)
        elif isinstance(value, bool | int | float | str | bytes):
            values[field.name] = value
        elif value:
            nested = field.message_type is not None
            values[field.name] = (
                [message_to_dict(item) for item in value] if nested else list(value)
            )
    return values


def fill_message(message: MessageT, values: Mapping[str, Any]) -> MessageT:
    """Set the fields of `message` from a nested mapping of the same names."""
    for name, value in values.items():
        field: Any = message.DESCRIPTOR.fields_by_name[name]
        target = getattr(message, name)
        if value is None:
            continue
        if isinstance(target, Message):
            target.SetInParent()
            fill_message(target, value)
        elif field.message_type is not None:
            for item in value:
                fill_message(target.add(), item)
        elif field.enum_type is not None:
            setattr(message, name, enum_number(field.enum_type, value, name))
        else:
            try:
                if isinstance(value, tuple | list):
                    target.extend(value)
                else:
                    setattr(message, name, value)
            except (AttributeError, TypeError, ValueError) as error:
                raise ConfigError(f"{name} = {value!r}: {error}") from None
    return message


def _prefix(enum: EnumDescriptor) -> str:
    # PRUNING_METHOD_UNSPECIFIED -> PRUNING_METHOD_
    return enum.values_by_number[0].name.removesuffix("UNSPECIFIED")


def enum_value(enum: EnumDescriptor, number: int) -> str:
    """The member's value for a wire number, 2 -> "snip"; an unknown number as text."""
    member = enum.values_by_number.get(number)
    return member.name.removeprefix(_prefix(enum)).lower() if member else str(number)


def enum_number(enum: EnumDescriptor, value: str, name: str) -> int:
    """The wire number of a member's value: "snip" -> 2."""
    member = enum.values_by_name.get(f"{_prefix(enum)}{value.upper()}")
    if member is None or member.number == 0:
        known = [enum_value(enum, item.number) for item in enum.values if item.number]
        raise ConfigError(f"{name} = {value!r}: choose one of {', '.join(known)}.")
    return int(member.number)


def enum_to_proto(enum: EnumDescriptor, value: StrEnum) -> str:
    name: str = enum.values_by_number[enum_number(enum, value.value, enum.name)].name
    return name


# Peers with different majors refuse each other; higher minors only add.
PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0

# On loopback, 4 MiB messages are slower, and 64 KiB messages need more calls.
CHUNK_BYTES = 256 * 1024
