"""Markdown tables, and what a value may be according to its JSON schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar or a line break within a cell stays in its cell."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def code(text: str) -> str:
    """Text as code; nothing where it is empty."""
    return f"`{text}`" if text else ""


def allowed(schema: Mapping[str, Any]) -> str:
    """What a value may be, in words: its type with its bounds, or the values themselves."""
    return ", ".join(dict.fromkeys(_allowed(schema, schema.get("$defs", {}))))


def _allowed(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        yield from _allowed(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    elif "anyOf" in schema:
        for part in schema["anyOf"]:
            yield from _allowed(part, definitions)
    elif "enum" in schema:
        yield from (code(str(value)) for value in schema["enum"])
    elif "const" in schema:
        yield code(str(schema["const"]))
    elif choice := re.fullmatch(r"\^\((\w+(?:\|\w+)+)\)\$", schema.get("pattern", "")):
        yield from map(code, choice[1].split("|"))
    elif schema["type"] == "null":
        yield "none"
    elif schema["type"] == "array":
        yield f"list of {allowed(schema['items'])}"
    else:
        kind = schema.get("format", schema["type"])
        bounds = [f"{sign} {_plain(schema[key])}" for key, sign in _BOUNDS.items() if key in schema]
        yield " ".join([kind, " and ".join(bounds)]).rstrip()


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)
