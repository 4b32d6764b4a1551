"""Terminal output of command lines, made printable."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lipt.common.text import escaped, printable, printable_lines


def print_line(line: str, *, err: bool = False) -> None:
    """Print a line for a person, to standard error if `err`."""
    # sys.stderr by name, because a moving progress line replaces it.
    typer.echo(printable(line), file=sys.stderr if err else None)


def print_document(text: str) -> None:
    typer.echo(escaped(text, keep="\n"), nl=False)


def print_error(program: str, sentence: str) -> None:
    typer.echo(f"{program}: {printable_lines(sentence)}", file=sys.stderr)


class CommandGroup(TyperGroup):
    """A group whose help has a whole sentence for each command."""

    def panels(self, names: list[str]) -> dict[str, list[str]]:
        """The commands by heading, in the order of the help."""
        return {"Commands": names}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands; a sentence that is longer than a line goes on below."""
        names = self.list_commands(ctx)
        width = max(map(len, names))
        for heading, listed in self.panels(names).items():
            commands = {name: self.get_command(ctx, name) for name in listed}
            rows = [
                (name.ljust(width), command.get_short_help_str(formatter.width * 3))
                for name, command in commands.items()
                if command is not None
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)


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
