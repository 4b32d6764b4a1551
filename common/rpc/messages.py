"""Protobuf messages: one walk between a message and nested values of the same names.

Enum members have the same names on both sides: `PRUNING_METHOD_SNIP` is "snip". What is
particular to a message stands beside what it is converted to, as in `config/messages.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

from lipt.common.errors import ConfigError

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
    """Set the fields of `message` from a nested mapping of the same names.

    Args:
        message: is changed.
        values: by the names of its fields.
        path: before the names in messages, ending in a dot.
        meant: asks, of a name that there is not, for one that may be meant.

    Raises:
        ConfigError: an unknown field (the known ones are listed) or a bad value.
    """
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
    """The member's value for a number of the wire: 2 -> "snip".

    An unspecified or unknown number has no member; its text fails validation
    with the list of those that exist.
    """
    member = enum.values_by_number.get(number)
    return member.name.removeprefix(_prefix(enum)).lower() if member else str(number)


def enum_number(enum: EnumDescriptor, value: str, name: str) -> int:
    """The number on the wire for a member's value: "snip" -> 2.

    Raises:
        ConfigError: there is no such member.
    """
    member = enum.values_by_name.get(f"{_prefix(enum)}{value.upper()}")
    if member is None or member.number == 0:
        known = [enum_value(enum, item.number) for item in enum.values if item.number]
        raise ConfigError(f"{name} = {value!r}: choose one of {', '.join(known)}.")
    return int(member.number)


def enum_to_proto(enum: EnumDescriptor, value: StrEnum) -> str:
    """The name on the wire for a member, as messages' constructors take it."""
    name: str = enum.values_by_number[enum_number(enum, value.value, enum.name)].name
    return name
