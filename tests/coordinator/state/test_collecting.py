from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from lipt.common.errors import StateError
from lipt.coordinator.state.files import StateLock
from lipt.coordinator.state.maintenance import Collected, check_state, collect_garbage
from tests.coordinator.state.conftest import StateBench

HOUR = 3600.0
NOW = 10_000_000_000.0  # long after every file was written


def test_what_no_run_needs_goes_and_the_rest_stays(state: StateBench) -> None:
    state.put("a refused learner")
    (state.directory / "uploads" / f"{'a' * 64}.part").write_text("cut")
    (state.directory / "signals").mkdir()
    (state.directory / "signals" / "s.safetensors").write_text("cached")
    (state.directory / "signals" / "s.tmp.part").write_text("half")
    collected = collect_garbage(state.directory, min_age_seconds=24 * HOUR, now=NOW)
    gone = ["ready shard 0", "ready shard 1", "training shard 0", "a refused learner"]
    gone += [f"cancelled {what}" for what in ("shard 0", "shard 1", "result 0", "snapshot 0")]
    assert [text for text in gone if state.has(text)] == []
    stays = ["ready result 0", "ready snapshot 0", "training shard 1", "training shard 2"]
    stays += ["cancelled theta*", "ready theta_p", "uploaded weights", "x" * 24]
    stays += ["diagnosis of ", "diagnosis of ready"]
    assert [text for text in stays if not state.has(text)] == []
    assert [path.name for path in (state.directory / "signals").iterdir()] == ["s.safetensors"]
    assert list((state.directory / "uploads").iterdir()) == []
    num_bytes = len("".join(gone)) + len("cut") + len("half")
    assert collected == Collected(len(gone) + 2, num_bytes, num_young=0)
    assert check_state(state.directory).problems == ()
    again = collect_garbage(state.directory, min_age_seconds=0.0, now=NOW)
    assert again == Collected(0, 0, 0)


def test_what_was_sent_a_moment_ago_is_spared(state: StateBench) -> None:
    name = state.put("a learner whose commit is on its way")
    os.utime(state.blobs.path(name), (NOW - 10.0, NOW - 10.0))
    collected = collect_garbage(state.directory, min_age_seconds=60.0, now=NOW)
    assert collected.num_young == 1
    assert state.blobs.has(name)


def test_dry_run_counts_and_leaves_everything(state: StateBench) -> None:
    before = sorted(state.directory.rglob("*"))
    dry = collect_garbage(state.directory, min_age_seconds=0.0, now=NOW, dry_run=True)
    after = [path for path in sorted(state.directory.rglob("*")) if path.name != "coordinator.lock"]
    assert [path for path in before if path not in after] == []
    assert dry == collect_garbage(state.directory, min_age_seconds=0.0, now=NOW)


def test_coordinator_that_serves_makes_it_fail(state: StateBench) -> None:
    words = r"in use by process \d+ serving 127\.0\.0\.1:50051.*it collects by itself"
    with contextlib.ExitStack() as serving:
        lock = StateLock(state.directory)
        serving.callback(lock.release)
        lock.describe("serving 127.0.0.1:50051")
        with pytest.raises(StateError, match=words):
            collect_garbage(state.directory, min_age_seconds=0.0, now=NOW)
        assert state.has("cancelled shard 0")


def test_record_that_cannot_be_read_removes_nothing(state: StateBench) -> None:
    with contextlib.closing(sqlite3.connect(state.directory / "lipt.db")) as connection, connection:
        connection.execute("UPDATE learners SET body = '{' WHERE run_id = 'training'")
    with pytest.raises(StateError, match=r"nothing was removed.*learner 0 of run training"):
        collect_garbage(state.directory, min_age_seconds=0.0, now=NOW)
    assert state.has("cancelled shard 0")
    StateLock(state.directory).release()  # it was given back


def test_directory_without_state_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no state"):
        collect_garbage(tmp_path / "typo", min_age_seconds=0.0, now=NOW)
    assert not (tmp_path / "typo").exists()
