"""Validation of configuration values, and errors that state the remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from reprlib import Repr
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from lipt.common.config.knobs import setting_names
from lipt.common.config.run_config import RunConfig, merge
from lipt.common.errors import ConfigError
from lipt.common.rpc.messages import fill_message, message_to_dict
from lipt.common.text import did_you_mean
from lipt.v1 import config_pb2

ValueT = TypeVar("ValueT")

# Creation takes milliseconds, and each assigned learner needs one.
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def validate(kind: type[ValueT], values: Mapping[str, Any]) -> ValueT:
    """A pydantic model or dataclass of `values`; errors become one sentence."""
    try:
        validated: ValueT = _adapter(kind).validate_python(dict(values))
    except ValidationError as error:
        model = kind if issubclass(kind, BaseModel) else None
        raise ConfigError(explain(error, model)) from None
    return validated


def dump(value: Any) -> dict[str, Any]:
    values: dict[str, Any] = _adapter(type(value)).dump_python(value)
    return values


def explain(
    error: ValidationError, model: type[BaseModel] | None = None, *, rules: bool = True
) -> str:
    """Pydantic's errors, a clause each; without `rules`, only those of single settings."""
    clauses = []
    for item in error.errors(include_url=False):
        field = ".".join(map(str, item["loc"]))
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "value_error":
            clauses += [f"{field}: {message}" if field else message] if rules else []
        elif item["type"] == "extra_forbidden":
            known = [] if model is None else setting_names(model)
            clauses.append(f"{field}: there is no such setting.{did_you_mean(field, known)}")
        else:
            value = "" if item["type"] == "missing" else f" = {_Brief().repr(item['input'])}"
            # Users write no tuples.
            message = message.replace("a valid tuple", 'a list, such as ["NAME"]')
            clauses.append(f"{field}{value}: {message[:1].lower()}{message[1:]}")
    return "; ".join(clauses)


class _Brief(Repr):
    # `repr` itself fails on deep values, and shows all of long ones.
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200


def run_config_to_proto(config: RunConfig) -> config_pb2.RunConfig:
    """The message with every field set; None stays unset."""
    return fill_message(config_pb2.RunConfig(), dump(config))


def overrides_to_proto(overrides: Mapping[str, Any]) -> config_pb2.RunConfig:
    """The message with only the given fields set; the coordinator checks rules over several."""
    try:
        RunConfig.model_validate(overrides)
    except ValidationError as error:
        if wrong := explain(error, RunConfig, rules=False):
            raise ConfigError(wrong) from None
    return fill_message(config_pb2.RunConfig(), overrides)


def run_config_from_proto(message: config_pb2.RunConfig, defaults: RunConfig) -> RunConfig:
    """`defaults` with the set fields of `message`, validated together."""
    return validate(RunConfig, merge(dump(defaults), message_to_dict(message)))
