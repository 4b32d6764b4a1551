from __future__ import annotations

import os
from pathlib import Path

import pytest
import typer

from lipt.trainer.cli.arguments.paths import require_apart, require_place, require_replaceable


def test_files_that_are_there_or_not_can_be_written(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.touch()
    require_replaceable(there, tmp_path / "new", None)


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match=r"is a directory\. Name a file in it"):
        require_replaceable(tmp_path)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match=r"none is not a directory\. Make it first"):
        require_place(tmp_path / "none" / "file")


def test_a_directory_that_cannot_be_written_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write everywhere, so permissions alone would not show it.
    monkeypatch.setattr(os, "access", lambda path, mode: (Path(path), mode) != (tmp_path, os.W_OK))
    with pytest.raises(typer.BadParameter, match="cannot be written to"):
        require_place(tmp_path / "file")


def test_a_device_takes_lines_but_is_never_replaced() -> None:
    require_place(Path(os.devnull))
    with pytest.raises(typer.BadParameter, match=r"null is not a regular file"):
        require_replaceable(Path(os.devnull))


def test_one_file_under_two_flags_is_refused(tmp_path: Path) -> None:
    one, same = tmp_path / "one", tmp_path / "x" / ".." / "one"
    require_apart({"--out": one, "--log": tmp_path / "other", "--checkpoint": None})
    with pytest.raises(typer.BadParameter, match=r"--out and --log are both .*one\. Give each"):
        require_apart({"--out": one, "--log": same})
