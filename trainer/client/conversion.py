"""Views from messages, by the types of a view's fields.

A field of a view is read from the message's field of the same name, or `of` the one that its
metadata names (see `lipt.trainer.views`):

    a view                a message of its own
    X | None              None where the message has no such field set
    tuple[X, ...]         a repeated field
    Mapping[str, str]     a map
    a state               an enum's member, UNKNOWN where this version does not know it
    RoleName and the like an enum's member in small letters
    datetime              a timestamp, None where it is out of range
    RunConfig             the configuration, validated
    anything else         the value as it is
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from operator import attrgetter
from types import NoneType
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import run_config_from_proto
from lipt.common.rpc.messages import enum_value
from lipt.common.states import LearnerPhase, LearnerState, RunState
from lipt.trainer.views import ColumnTypeName, RoleName, TargetKindName
from lipt.v1 import access_pb2, worker_pb2

ViewT = TypeVar("ViewT")

_NAMES: dict[Any, Any] = {
    RoleName: access_pb2.Role.DESCRIPTOR,
    ColumnTypeName: worker_pb2.ColumnType.DESCRIPTOR,
    TargetKindName: worker_pb2.TargetKind.DESCRIPTOR,
}


def view_of(view: type[ViewT], message: Message) -> ViewT:
    """The view of a message.

    Args:
        view: one of `lipt.trainer.views`.
        message: the message that it shows.

    Raises:
        ConfigError: a configuration that this version refuses.
    """
    kind: Any = view
    return view(**{name: read(message) for name, read in _readers(kind).items()})


@functools.cache
def _readers(view: Any) -> Mapping[str, Callable[[Any], Any]]:
    # Imported by views for type checkers only.
    types = typing.get_type_hints(view, localns={"RunConfig": RunConfig})
    return {
        field.name: attrgetter(*field.metadata["of"])
        if field.metadata
        else _reader(field.name, types[field.name])
        for field in dataclasses.fields(view)
    }


def _reader(name: str, kind: Any) -> Callable[[Any], Any]:
    if kind in (RunState, LearnerState, LearnerPhase):
        return lambda message: _state(kind, message, name)
    if NoneType in typing.get_args(kind):
        some = _converter(typing.get_args(kind)[0])
        return lambda message: some(getattr(message, name)) if message.HasField(name) else None
    convert = _converter(kind)
    return lambda message: convert(getattr(message, name))


def _converter(kind: Any) -> Callable[[Any], Any]:
    if typing.get_origin(kind) is tuple:
        each = _converter(typing.get_args(kind)[0])
        return lambda values: tuple(map(each, values))
    if typing.get_origin(kind) is Mapping:
        return dict
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return functools.partial(view_of, kind)
    if kind is RunConfig:
        return lambda message: run_config_from_proto(message, RunConfig())
    if kind in _NAMES:
        return functools.partial(enum_value, _NAMES[kind])
    return _time if kind is datetime else lambda value: value


def _state(states: Any, message: Any, name: str) -> Any:
    enum = message.DESCRIPTOR.fields_by_name[name].enum_type
    value = enum_value(enum, getattr(message, name))
    return states(value) if value in set(states) else states.UNKNOWN


def _time(stamp: Timestamp) -> datetime | None:
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except ValueError:  # a year that datetime does not have
        return None
