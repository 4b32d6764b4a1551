"""Terminal: where command lines print, each line made printable.

Nothing else writes to standard output or standard error; the linter sees to it.
"""

from __future__ import annotations

import typer

from lipt.common.text.printable import escaped, escaped_json, printable, printable_lines


def say(line: str, *, err: bool = False) -> None:
    """Print a line for a person, on standard error where `err`."""
    typer.echo(printable(line), err=err)


def say_json(document: str) -> None:
    """Print a JSON document for a script, whole."""
    typer.echo(escaped_json(document))


def say_document(text: str) -> None:
    """Print a text of several lines as it is, to be kept in a file."""
    typer.echo(escaped(text, keep="\n"), nl=False)


def complain(program: str, sentence: str) -> None:
    """Print on standard error why a program ends; what has several lines keeps them, indented."""
    typer.echo(f"{program}: {printable_lines(sentence)}", err=True)
