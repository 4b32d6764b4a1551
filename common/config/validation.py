"""Validation: nested values to models, and pydantic's complaints as sentences.

A sentence says which field, which value, and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from lipt.common.config.suggestions import did_you_mean
from lipt.common.errors import ConfigError

ValueT = TypeVar("ValueT")

# Making one takes milliseconds, and a task is written for every learner that goes out.
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def validate(kind: type[ValueT], values: Mapping[str, Any]) -> ValueT:
    """A pydantic model, or a dataclass, of `values`; complaints become one sentence.

    Raises:
        ConfigError: values are missing, unknown or out of range.
    """
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
    """What pydantic found wrong: field, value and what is allowed, one clause each.

    Args:
        error: pydantic's complaints.
        model: what was validated; its fields are listed where one does not exist.
    """
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
    """The names that exist where an unknown one was given; empty where that is not known."""
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
