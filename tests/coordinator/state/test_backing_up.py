from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lipt.common.errors import StateError
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.maintenance import back_up, check_state
from tests.coordinator.state.conftest import StateBench


async def load(directory: Path) -> object:
    database = Database.open(directory / "lipt.db")
    try:
        return await database.load_runs()
    finally:
        await database.close()


@pytest.mark.parametrize("link", [True, False])
async def test_backup_is_whole_and_has_what_is_needed(
    state: StateBench, tmp_path: Path, link: bool
) -> None:
    target = tmp_path / "new" / "backup"
    made = back_up(state.directory, target, link=link)
    checked = check_state(target)
    assert checked.problems == ()
    assert (made.num_runs, made.num_blobs) == (3, checked.num_blobs)
    assert made.num_linked == (made.num_blobs if link else 0)
    assert await load(target) == await load(state.directory)
    assert not list(target.rglob(state.path("cancelled shard 0").name))
    assert [path.name for path in target.parent.iterdir()] == ["backup"]


async def test_backup_of_a_served_state_has_what_was_acknowledged(
    state: StateBench, tmp_path: Path
) -> None:
    database = Database.open(state.directory / "lipt.db")
    (run, *_) = await database.load_runs()
    changed = run.changed(message="acknowledged, and still in the write-ahead log")
    await database.save_run(changed)
    back_up(state.directory, tmp_path / "backup")
    await database.save_run(run.changed(message="written later"))
    await database.close()
    runs = await load(tmp_path / "backup")
    assert isinstance(runs, tuple)
    assert changed in runs


def test_file_system_without_links_is_copied_to(
    state: StateBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    assert back_up(state.directory, tmp_path / "backup").num_linked == 0
    assert check_state(tmp_path / "backup").problems == ()


def test_directory_that_is_not_empty_is_refused(state: StateBench, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "notes").write_text("mine")
    with pytest.raises(StateError, match="is not empty"):
        back_up(state.directory, tmp_path / "backup")
    assert [path.name for path in (tmp_path / "backup").iterdir()] == ["notes"]


def test_backup_into_the_state_itself_is_refused(state: StateBench, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(state.directory)
    (tmp_path / "inside").symlink_to(state.directory / "blobs" / "new")
    before = sorted(state.directory.rglob("*"))
    for destination in (
        state.directory,
        state.directory / "backup",
        state.directory / "a" / "b",
        tmp_path / "alias" / "backup",
        tmp_path / "inside",
        state.directory / ".." / "state" / "backup",
    ):
        with pytest.raises(StateError, match=r"lies in the state directory .*elsewhere"):
            back_up(state.directory, destination)
    assert sorted(state.directory.rglob("*")) == before


def test_damaged_or_missing_blob_leaves_no_backup(state: StateBench, tmp_path: Path) -> None:
    path = state.path("ready theta_p")
    path.write_text("other bytes")
    with pytest.raises(StateError, match=r"is damaged.*lipt state check"):
        back_up(state.directory, tmp_path / "backup", link=False)
    path.unlink()
    with pytest.raises(StateError, match="theta_p of run name-ready needs it"):
        back_up(state.directory, tmp_path / "backup")
    assert [item.name for item in tmp_path.iterdir()] == ["state"]


def test_full_disk_leaves_no_backup_and_is_said(
    state: StateBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(StateError, match="No space left on device"):
        back_up(state.directory, tmp_path / "backup", link=False)
    assert [item.name for item in tmp_path.iterdir()] == ["state"]
