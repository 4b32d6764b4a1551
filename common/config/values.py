"""Checks of configuration values, and the errors that name the remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from lipt.common.config.knobs import sections
from lipt.common.config.run_config import RunConfig
from lipt.common.errors import ConfigError
from lipt.common.rpc.messages import fill_message, message_to_dict
from lipt.v1 import config_pb2, worker_pb2

# difflib's measure, from 0 to 1, from which on two names are alike.
_ALIKE = 0.75


def did_you_mean(name: str, model: type[BaseModel]) -> str:
    """A question that names the closest settings of a model, dotted; empty where none is close."""
    known = [
        f"{section.name}.{knob.name}".lstrip(".")
        for section in sections(model)
        for knob in section.knobs
    ]
    leaves = {full.rpartition(".")[2] for full in known}
    alike = get_close_matches(name.rpartition(".")[2], leaves, n=1, cutoff=_ALIKE)
    found = [full for full in known if full.rpartition(".")[2] in alike]
    return f"did you mean {' or '.join(found)}?" if found else ""


ValueT = TypeVar("ValueT")

# Making one takes milliseconds, and a task is written for every learner that goes out.
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def validate(kind: type[ValueT], values: Mapping[str, Any]) -> ValueT:
    """A pydantic model, or a dataclass, of `values`; complaints become one sentence."""
    try:
        validated: ValueT = _adapter(kind).validate_python(dict(values))
    except ValidationError as error:
        model = kind if issubclass(kind, BaseModel) else None
        raise ConfigError(explain(error, model)) from None
    return validated


def dump(value: Any) -> dict[str, Any]:
    """The nested values that `validate` makes a model or dataclass of."""
    values: dict[str, Any] = _adapter(type(value)).dump_python(value)
    return values


def explain(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """What pydantic found wrong: field, value and what is allowed, one clause each."""
    clauses = []
    for item in error.errors(include_url=False):
        field = ".".join(str(part) for part in item["loc"])
        value = "" if item["type"] == "missing" else f" = {item['input']!r}"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "value_error":
            clauses.append(f"{field}: {message}" if field else message)
        elif item["type"] == "extra_forbidden":
            known = ", ".join(_fields_beside(item["loc"], model))
            meant = did_you_mean(field, model) if model is not None else ""
            listed = f"there are {known}" if known else ""
            clauses.append(
                "; ".join(filter(None, (f"{field}: there is no such setting", listed, meant)))
            )
        else:
            clauses.append(f"{field}{value}: {message[:1].lower()}{message[1:]}")
    return "; ".join(clauses)


def _fields_beside(loc: tuple[int | str, ...], model: type[BaseModel] | None) -> list[str]:
    for part in loc[:-1]:
        field = model.model_fields.get(str(part)) if model is not None else None
        inner = field.annotation if field is not None else None
        model = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None
    return [] if model is None else list(model.model_fields)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the leaves of `over` put over its own."""
    merged = dict(base)
    for key, value in over.items():
        nested = merged.get(key)
        merged[key] = (
            merge(nested, value)
            if isinstance(value, Mapping) and isinstance(nested, Mapping)
            else value
        )
    return merged


if TYPE_CHECKING:
    from lipt.common.config.tasks import LearnerTask, ScoringTask


def run_config_to_proto(config: RunConfig) -> config_pb2.RunConfig:
    """The message with every field set (None stays unset)."""
    return fill_message(config_pb2.RunConfig(), dump(config))


def overrides_to_proto(overrides: Mapping[str, Any]) -> config_pb2.RunConfig:
    """The message with just the given fields set."""
    return fill_message(
        config_pb2.RunConfig(), overrides, meant=lambda name: did_you_mean(name, RunConfig)
    )


def run_config_from_proto(message: config_pb2.RunConfig, defaults: RunConfig) -> RunConfig:
    """`defaults` with the fields that are set in `message`, validated together."""
    return validate(RunConfig, merge(dump(defaults), message_to_dict(message)))


def task_to_proto(task: LearnerTask) -> worker_pb2.LearnerTask:
    """A learner's task as a message."""
    return fill_message(worker_pb2.LearnerTask(), dump(task))


def task_from_proto(message: worker_pb2.LearnerTask) -> LearnerTask:
    """A learner's task, checked."""
    from lipt.common.config.tasks import LearnerTask  # noqa: PLC0415 - imports torch

    # A message does not tell a zero from nothing.
    zeros: dict[str, Any] = {"num_classes": 0, "density": 0.0, "seed": 0}
    zeros |= {"learners": {}, "augmentation": {}}
    values = zeros | message_to_dict(message)
    if "columns" in values:
        values["columns"] = _columns_with_zeros(values["columns"])
    return validate(LearnerTask, values)


def scoring_to_proto(task: ScoringTask) -> worker_pb2.ScoringTask:
    """A scoring task as a message."""
    return fill_message(worker_pb2.ScoringTask(), dump(task))


def scoring_from_proto(message: worker_pb2.ScoringTask) -> ScoringTask:
    """A scoring task, checked."""
    from lipt.common.config.tasks import ScoringTask  # noqa: PLC0415 - imports torch

    zeros = dict.fromkeys(("num_classes", "start", "stop", "batch_size", "threads"), 0)
    values: dict[str, Any] = {"model": "", "fingerprint": ""} | zeros | message_to_dict(message)
    if "columns" in values:
        values["columns"] = _columns_with_zeros(values["columns"])
    return validate(ScoringTask, values)


def _columns_with_zeros(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "columns": [
            {**one, "column": {"name": "", "shape": (), **one.get("column", {})}}
            for one in values.get("columns", ())
        ]
    }
