"""Nested text: JSON and TOML that people and peers write, of limited depth.

Python's readers end deep text in a RecursionError, which is no ValueError. Less deep text is
read, and `repr` or `json.dumps` of the result fails later.
"""

from __future__ import annotations

import json
import tomllib
from typing import Any

_MAX_DEPTH = 64


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; a ValueError for other text, and for more than 64 levels."""
    try:
        return _shallow(json.loads(text))
    except RecursionError:
        raise _too_deep() from None


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text; errors as `parse_json`."""
    try:
        tables: dict[str, Any] = _shallow(tomllib.loads(text))
    except RecursionError:
        raise _too_deep() from None
    return tables


def toml_value(text: str) -> Any:
    """The value that `text` is in TOML, or else the text itself."""
    try:
        return text if "\n" in text else parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def _shallow(value: Any) -> Any:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MAX_DEPTH):
        groups = [each.values() if isinstance(each, dict) else each for each in level]
        level = [item for group in groups for item in group if isinstance(item, dict | list)]
    if level:
        raise _too_deep()
    return value


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
