from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from lipt.common.errors import StateError
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.files import StateLock, make_private_directory, make_private_file
from lipt.coordinator.state.maintenance import back_up
from tests.coordinator.state.conftest import StateBench


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """A umask under which all users can read new files."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, str]:
    paths = [directory, *(path for path in directory.iterdir() if path.is_file())]
    return {path.name: f"{stat.S_IMODE(path.stat().st_mode):o}" for path in paths}


async def test_a_new_state_is_private(tmp_path: Path) -> None:
    lock = StateLock(tmp_path / "above" / "state")
    database = Database.open(tmp_path / "above" / "state" / "lipt.db")
    assert modes(tmp_path / "above" / "state") == {
        "state": "700",
        "coordinator.lock": "600",
        **dict.fromkeys(("lipt.db", "lipt.db-shm", "lipt.db-wal"), "600"),
    }
    # What was there before, or above, is not the coordinator's.
    assert stat.S_IMODE((tmp_path / "above").stat().st_mode) == 0o755
    await database.close()
    lock.release()


async def test_a_readable_state_becomes_private(state: StateBench) -> None:
    state.directory.chmod(0o755)
    for name in ("lipt.db", "lipt.db-wal", "coordinator.lock"):
        (state.directory / name).touch()
        (state.directory / name).chmod(0o644)
    StateLock(state.directory).release()
    assert set(modes(state.directory).values()) == {"700", "600"}


async def test_a_backup_is_private_too(state: StateBench, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    back_up(state.directory, tmp_path / "copy")
    assert set(modes(tmp_path / "copy").values()) == {"700", "600"}
    blobs = (path for path in (tmp_path / "copy" / "blobs").rglob("*") if path.is_file())
    assert {stat.S_IMODE(path.stat().st_mode) for path in blobs} == {0o600}


def test_stricter_permissions_and_links_are_unchanged(tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    directory.mkdir(mode=0o500)
    elsewhere.touch(mode=0o644)
    directory.chmod(0o700)
    (directory / "link").symlink_to(elsewhere)
    make_private_file(directory / "file")
    (directory / "file").chmod(0o400)
    directory.chmod(0o500)
    make_private_directory(directory)
    assert modes(directory) == {"state": "500", "file": "400", "link": "644"}
    directory.chmod(0o700)


def test_permissions_that_cannot_be_changed_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    tmp_path.joinpath("open").mkdir()
    make_private_directory(tmp_path / "open")
    assert "is open to other users (mode 755)" in caplog.text


def test_a_second_coordinator_is_refused_with_the_first_one_s_process(tmp_path: Path) -> None:
    with contextlib.ExitStack() as first_runs:
        first = StateLock(tmp_path)
        first_runs.callback(first.release)
        with pytest.raises(StateError, match=rf"process {os.getpid()} starting"):
            StateLock(tmp_path).release()
        first.describe("serving 127.0.0.1:50051")
        with pytest.raises(StateError, match=rf"process {os.getpid()} serving 127\.0\.0\.1:50051"):
            StateLock(tmp_path).release()
    StateLock(tmp_path).release()


@pytest.mark.parametrize("read_only", [False, True])
def test_an_unusable_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    (tmp_path / "file").write_text("in the way")
    if read_only:
        monkeypatch.setattr(os, "open", refuse)
    directory = tmp_path / ("state" if read_only else "file") / "state"
    with pytest.raises(StateError, match=rf"{directory} cannot be used: .*--state-dir"):
        StateLock(directory)


@pytest.mark.parametrize("how", ["granted twice", "not supported"])
def test_a_file_system_without_working_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def flock(*_: object) -> None:
        if how == "not supported":
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(StateError, match=r"locks do not work in .* --state-dir on a local disk"):
        StateLock(tmp_path)
