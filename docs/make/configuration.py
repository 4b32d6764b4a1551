"""Configuration: every setting of coordinator, runs and workers, as their models have them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from docs.make.markdown import allowed, code, table
from lipt.common.config.run_config import RunConfig
from lipt.coordinator.settings import CoordinatorSettings
from lipt.worker.settings import WorkerSettings

_HEAD = ("setting", "default", "values", "what it does")


def configuration() -> str:
    """All settings as Markdown."""
    parts = [
        *sections("## The coordinator", CoordinatorSettings, ()),
        *sections("## Runs: `[run]`", RunConfig, ("run",)),
        *sections("## Workers", WorkerSettings, ()),
    ]
    return "\n".join(parts)


def sections(heading: str, model: type[BaseModel], path: tuple[str, ...]) -> Iterator[str]:
    """A model's own settings, and below them those of its sections."""
    yield f"{heading}\n"
    yield f"{(model.__doc__ or '').strip()}\n"
    own = {name: field for name, field in model.model_fields.items() if not _section(field)}
    if own:
        yield table(_HEAD, (_row(name, field) for name, field in own.items()))
    for name, field in model.model_fields.items():
        section = _section(field)
        if section is not None and section is not RunConfig:
            inner = (*path, name)
            yield from sections(f"### `[{'.'.join(inner)}]`", section, inner)


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _row(name: str, field: FieldInfo) -> tuple[str, ...]:
    # The annotation with its bounds, which pydantic keeps beside it.
    kind: Any = field.annotation
    bounded: Any = Annotated[kind, *field.metadata] if field.metadata else kind
    schema = TypeAdapter(bounded).json_schema()
    return code(name), _default(field), allowed(schema), field.description or ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return "the machine's"
    value = field.default
    if value is None:
        return ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, Path | str):
        return code(f'"{value}"')
    return code(str(list(value)) if isinstance(value, tuple) else f"{value}")
