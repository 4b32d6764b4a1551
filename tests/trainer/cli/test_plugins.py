from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lipt.trainer.cli import app, main

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This checkout's own entry points, whether or not it is installed."""
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"][app.GROUP]
    points = EntryPoints(EntryPoint(name, value, app.GROUP) for name, value in declared.items())
    monkeypatch.setattr(app, "entry_points", points.select)


def test_plugged_in_commands_stand_in_the_help() -> None:
    done = CliRunner().invoke(main, ["--help"])
    assert done.exit_code == 0
    assert "state" in done.stdout
    assert "demo" in done.stdout


@pytest.mark.parametrize("command", ["check", "gc", "backup"])
def test_state_commands_are_lipt_s_own(command: str) -> None:
    done = CliRunner().invoke(main, ["state", command, "--help"])
    assert done.exit_code == 0, done.output
    assert f"state {command} [OPTIONS]" in done.stdout
    assert "--state-dir" in done.stdout


def test_refusal_of_a_plugged_in_command_is_one_sentence(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["state", "check", "--state-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"lipt: there is no state in {tmp_path}")
    assert "Traceback" not in done.output


def test_unknown_command_is_still_refused() -> None:
    done = CliRunner().invoke(main, ["stat"])
    assert done.exit_code == 2
    assert "No such command 'stat'" in done.output
