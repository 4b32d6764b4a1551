"""Output of commands: JSON for scripts, tables for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer

from lipt.trainer.writing.formatting import table_lines
from lipt.trainer.writing.jsonable import to_jsonable


def print_json(value: Any) -> None:
    """One JSON document on one line, keys in the order of the value's fields."""
    typer.echo(json.dumps(to_jsonable(value), ensure_ascii=False, allow_nan=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output."""
    for line in table_lines(header, rows):
        typer.echo(line)
