"""Terminal output of command lines, made printable."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lipt.common.text import escaped, printable, printable_lines


def print_line(line: str, *, err: bool = False) -> None:
    """Print a line for a person, to standard error if `err`."""
    # sys.stderr by name, because a moving progress line replaces it.
    typer.echo(printable(line), file=sys.stderr if err else None)


def print_document(text: str) -> None:
    typer.echo(escaped(text, keep="\n"), nl=False)


def print_error(program: str, sentence: str) -> None:
    typer.echo(f"{program}: {printable_lines(sentence)}", file=sys.stderr)


SHORT_HELP = {"help_option_names": ["-h", "--help"]}


def _show(asked: bool) -> None:  # noqa: FBT001 - as typer calls it
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 - takes 30 ms

        print_line(f"lipt {version('lipt')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_show, is_eager=True, help="Show the version, and leave."),
]
