"""Pydantic's complaints as sentences: which field, which value, what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from lipt.common.errors import ConfigError

ModelT = TypeVar("ModelT", bound=BaseModel)


def validate(model: type[ModelT], values: Mapping[str, Any]) -> ModelT:
    """A pydantic model of `values`; its complaints become one sentence.

    Raises:
        ConfigError: values are missing, unknown or out of range.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def explain(error: ValidationError) -> str:
    """What pydantic found wrong: field, value and what is allowed, one clause each."""
    clauses = []
    for item in error.errors(include_url=False):
        field = ".".join(str(part) for part in item["loc"])
        value = "" if item["type"] == "missing" else f" = {item['input']!r}"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "value_error":
            clauses.append(f"{field}: {message}" if field else message)
        elif item["type"] == "extra_forbidden":
            clauses.append(f"{field}: there is no such setting")
        else:
            clauses.append(f"{field}{value}: {message[:1].lower()}{message[1:]}")
    return "; ".join(clauses)


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
