"""Knobs: the settings of a model class, read from its fields and the docstrings below them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from inspect import cleandoc
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen
from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

Model = type[BaseModel]

_COMMENT_CHARACTERS = 98
# Digits are grouped from here on.
_LARGE = 10**6
_BOUNDS = {Ge: ("at least", "ge"), Gt: ("above", "gt"), Le: ("at most", "le"), Lt: ("below", "lt")}


@dataclass(frozen=True)
class Knob:
    """One setting; `allowed` is text, and a `default` of None is chosen later."""

    name: str
    description: str
    allowed: str
    default: Any
    example: Any
    required: bool


@dataclass(frozen=True)
class Section:
    """Settings under one heading; `name` is dotted, and "" at the top."""

    name: str
    description: str
    knobs: tuple[Knob, ...]


def sections(model: Model, name: str = "", description: str = "") -> Iterator[Section]:
    """All settings of a model: its own, then each section's, recursively."""
    fields = model.model_fields
    inner = {
        key: field.annotation
        for key, field in fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }
    own = tuple(_knob(key, field) for key, field in fields.items() if key not in inner)
    summary = cleandoc(model.__doc__ or "").partition("\n\n")[0]
    yield Section(name, description or _one_line(summary), own)
    for key, section in inner.items():
        path = f"{name}.{key}" if name else key
        yield from sections(section, path, _one_line(fields[key].description))


def setting_names(model: Model) -> list[str]:
    """The dotted names of all settings of a model."""
    return [
        f"{section.name}.{knob.name}".lstrip(".")
        for section in sections(model)
        for knob in section.knobs
    ]


def field_of(model: Model, path: str) -> FieldInfo:
    *names, leaf = path.split(".")
    for name in names:
        model = model.model_fields[name].annotation  # type: ignore[assignment]
    return model.model_fields[leaf]


def example_toml(model: Model, heading: str) -> str:
    """A TOML file of every setting, described, at its default or an example."""
    blocks = [_comment(heading)]
    for section in sections(model):
        if section.name:
            blocks.append(f"{_comment(section.description)}\n[{section.name}]")
        blocks += [_assignment(knob) for knob in section.knobs]
    return "\n\n".join(blocks) + "\n"


def option_help(model: Model, name: str, *, note: str = "", show_default: bool = True) -> str:
    knob = _knob(name, field_of(model, name))
    default = f"default: {knob.default}" if show_default and knob.default else ""
    bracket = "; ".join(filter(None, (knob.allowed, default)))
    return " ".join(filter(None, (knob.description, note, f"[{bracket}]" if bracket else "")))


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _knob(name: str, field: FieldInfo) -> Knob:
    required = field.is_required()
    return Knob(
        name=name,
        description=_one_line(field.description),
        allowed=_allowed(field),
        # A factory's result depends on the machine.
        default=None if required or field.default_factory else field.default,
        example=field.examples[0] if field.examples else None,
        required=required,
    )


def _allowed(field: FieldInfo) -> str:
    kind, choices = field.annotation, list[str]()
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = [member.value for member in kind]
    elif get_origin(kind) is Literal:
        choices = list(get_args(kind))
    if choices:
        return f"{', '.join(choices[:-1])} or {choices[-1]}"
    bounds: dict[str, str] = {}
    for limit in field.metadata:
        if isinstance(limit, MaxLen):
            return f"at most {limit.max_length} characters"
        if type(limit) in _BOUNDS:
            word, attribute = _BOUNDS[type(limit)]
            bounds[word] = _number(getattr(limit, attribute))
    if bounds.keys() == {"at least", "at most"}:
        return f"{bounds['at least']} to {bounds['at most']}"
    return ", ".join(f"{word} {bound}" for word, bound in bounds.items())


def _number(value: Any) -> str:
    if isinstance(value, int):
        power = value.bit_length() - 1
        return f"2^{power}" if value >= _LARGE and value == 1 << power else str(value)
    return f"{value:g}"


def _comment(text: str) -> str:
    lines = [textwrap.wrap(line, _COMMENT_CHARACTERS) or [""] for line in text.splitlines()]
    return "\n".join(f"# {line}".rstrip() for wrapped in lines for line in wrapped)


def _assignment(knob: Knob) -> str:
    shown = knob.example if knob.default is None else knob.default
    off = "# " if knob.default is None and not knob.required else ""
    allowed = f"  # {knob.allowed}" if knob.allowed else ""
    return f"{_comment(knob.description)}\n{off}{knob.name} = {toml_value(shown)}{allowed}"


def toml_value(value: Any) -> str:
    match value:
        case bool() | list() | tuple():
            return json.dumps(value)
        case ByteSize():
            return json.dumps(value.human_readable().replace(".0", ""))
        case int():
            return f"{value:_}" if value >= _LARGE else str(value)
        case float():
            return repr(value)
        case _:
            return json.dumps(str(value))
