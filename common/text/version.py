"""`--version`, as every command line of the package has it."""

from __future__ import annotations

from typing import Annotated

import typer

from lipt.common.text.terminal import say

# Of a typer application: `-h` beside `--help`, here and in the commands below it.
SHORT_HELP = {"help_option_names": ["-h", "--help"]}


def _show(asked: bool) -> None:  # noqa: FBT001 - as typer calls it
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 - takes 30 ms

        say(f"lipt {version('lipt')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_show, is_eager=True, help="Show the version, and leave."),
]
