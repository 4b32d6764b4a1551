from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from lipt.common.errors import StateError
from lipt.coordinator.state.files import StateLock


def test_second_coordinator_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    with contextlib.ExitStack() as first_runs:
        first = StateLock(tmp_path)
        first_runs.callback(first.release)
        with pytest.raises(StateError, match=rf"process {os.getpid()} starting"):
            StateLock(tmp_path).release()
        first.describe("serving 127.0.0.1:50051")
        with pytest.raises(StateError, match=rf"process {os.getpid()} serving 127\.0\.0\.1:50051"):
            StateLock(tmp_path).release()
    StateLock(tmp_path).release()


def test_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateError, match="--state-dir"):
        StateLock(tmp_path / "file" / "state")
