from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from lipt.trainer.cli.arguments.groups import grouped

app = typer.Typer()


@dataclass(frozen=True)
class Place:
    """A group."""

    host: Annotated[str, typer.Option("--host", "-h", help="Which machine.")]
    port: Annotated[int, typer.Option(envvar="PLACE_PORT")] = 80


@app.command()
@grouped
def visit(name: str, *, place: Place, twice: bool = False) -> None:
    """Go there."""
    typer.echo(f"{name} {place} {twice}")


def test_a_group_is_given_option_by_option() -> None:
    result = CliRunner().invoke(app, ["me", "-h", "here", "--port", "1", "--twice"])
    assert result.stdout == "me Place(host='here', port=1) True\n"


def test_a_groups_defaults_and_variables_are_those_of_its_options() -> None:
    assert "port=80" in CliRunner().invoke(app, ["me", "-h", "here"]).stdout
    result = CliRunner().invoke(app, ["me", "-h", "here"], env={"PLACE_PORT": "2"})
    assert "port=2" in result.stdout


def test_a_field_without_a_default_is_required() -> None:
    result = CliRunner().invoke(app, ["me"])
    assert (result.exit_code, "--host" in result.output) == (2, True)


def test_the_help_lists_a_groups_options_in_its_place() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    assert "Go there." in text
    places = [text.index(word) for word in ("--host", "Which machine.", "--port", "--twice")]
    assert places == sorted(places)
