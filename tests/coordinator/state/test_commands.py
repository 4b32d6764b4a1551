from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from lipt.coordinator.state.commands import app
from tests.coordinator.state.conftest import StateBench


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_check_says_what_there_is_and_fails_where_something_is_wrong(state: StateBench) -> None:
    whole = invoke("check", "--state-dir", state.directory)
    assert whole.exit_code == 0
    assert "3 runs, 1 subsets" in whole.stdout
    assert "no problems" in whole.stdout
    state.path("ready theta*").unlink()
    broken = invoke("check", "--state-dir", state.directory)
    assert broken.exit_code == 1
    assert "theta* of run name-ready needs it" in broken.stdout
    assert "1 problem\n" in broken.stdout


def test_gc_removes_only_with_the_age_that_is_given(state: StateBench) -> None:
    young = invoke("gc", "--state-dir", state.directory)
    assert "removed 0 files" in young.stdout
    dry = invoke("gc", "--state-dir", state.directory, "--min-age-hours", "0", "--dry-run")
    assert "would remove 7 files" in dry.stdout
    assert state.has("cancelled shard 0")
    assert (
        "removed 7 files"
        in invoke("gc", "--state-dir", state.directory, "--min-age-hours", "0").stdout
    )
    assert not state.has("cancelled shard 0")


def test_backup_names_the_command_that_checks_it(state: StateBench, tmp_path: Path) -> None:
    done = invoke("backup", tmp_path / "copy", "--copy", "--state-dir", state.directory)
    assert done.exit_code == 0
    assert f"lipt state check --state-dir {tmp_path / 'copy'}" in done.stdout
    assert "0 of them hard links" in done.stdout
    assert invoke("check", "--state-dir", tmp_path / "copy").exit_code == 0
