from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from lipt.common.access import local_token
from lipt.common.access.local_token import find_local_token, published

# Publishes, says so, and waits until it is killed.
PUBLISHER = """
import sys
from lipt.common.access.local_token import published
with published(7, sys.argv[1]) as paths:
    print(len(paths), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The two folders for tokens, both of which can be made."""
    for name in ("runtime", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / "runtime" / "lipt", tmp_path / "temporary" / f"lipt-{os.geteuid()}"


def test_token_is_found_under_its_port_until_it_is_withdrawn(folders: tuple[Path, Path]) -> None:
    with published(7, "one") as paths:
        assert paths == tuple(folder / "7.token" for folder in folders)
        assert find_local_token(7) == "one"
        assert find_local_token(8) is None
    assert find_local_token(7) is None
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


def test_folder_and_file_are_their_user_s_alone(folders: tuple[Path, Path]) -> None:
    before = os.umask(0)
    try:
        with published(7, "one") as paths:
            assert [path.stat().st_mode & 0o777 for path in paths] == [0o600, 0o600]
            assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700, 0o700]
    finally:
        os.umask(before)


def test_client_without_the_coordinator_s_environment_finds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with published(7, "one"):
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        assert find_local_token(7) == "one"


def test_token_of_a_killed_coordinator_is_not_found_and_gives_way_to_the_next_one_s() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, "one"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == b"2\n"
        assert find_local_token(7) == "one"
        process.kill()
        process.wait()
    assert find_local_token(7) is None
    with published(7, "other"):
        assert find_local_token(7) == "other"


def test_token_of_a_living_coordinator_is_not_replaced() -> None:
    with published(7, "one"):
        with published(7, "other") as paths:
            assert paths == ()
            assert find_local_token(7) == "one"
        assert find_local_token(7) == "one"


def test_end_of_a_coordinator_leaves_the_token_of_the_next_one(
    folders: tuple[Path, Path],
) -> None:
    with ExitStack() as following:
        with published(7, "one"):
            for folder in folders:
                (folder / "7.token").unlink()
            following.enter_context(published(7, "other"))
        assert find_local_token(7) == "other"


@pytest.mark.parametrize("mode", [0o701, 0o770, 0o750])
def test_folder_that_others_may_enter_is_used_by_neither_side(
    folders: tuple[Path, Path], mode: int
) -> None:
    for folder in folders:
        folder.mkdir()
    with published(7, "one"):
        folders[0].chmod(mode)
        folders[1].chmod(mode)
        assert find_local_token(7) is None
        with published(8, "other") as paths:
            assert paths == ()


def test_folder_of_another_user_is_used_by_neither_side(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with published(7, "one"):
        # Of the same names; it is their owner that is wrong.
        monkeypatch.setattr(local_token, "_folders", lambda: iter(folders))
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert find_local_token(7) is None
        with published(8, "other") as paths:
            assert paths == ()


def test_links_in_place_of_folder_or_file_are_not_followed(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    for folder in folders:
        folder.symlink_to(elsewhere)
    with published(7, "one") as paths:
        assert paths == ()
    assert list(elsewhere.iterdir()) == []
    for folder in folders:
        folder.unlink()
    with published(7, "one"):
        for folder in folders:
            (folder / "8.token").symlink_to(folder / "7.token")
        assert find_local_token(8) is None


def test_file_that_others_can_read_is_not_believed(folders: tuple[Path, Path]) -> None:
    with published(7, "one") as paths:
        for path in paths:
            path.chmod(0o644)
        assert find_local_token(7) is None


def test_nowhere_to_put_it_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(
        local_token, "_folders", lambda: iter([tmp_path / "file" / "lipt", tmp_path / "no" / "x"])
    )
    with published(7, "one") as paths:
        assert paths == ()
    assert find_local_token(7) is None
