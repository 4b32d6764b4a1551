from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.errors import StateError
from lipt.coordinator.state.database import Database, RunReader
from lipt.coordinator.state.records import RunRecord

MakeRun = Callable[..., RunRecord]


async def test_run_is_read_as_it_was_acknowledged_last(
    database: Database, make_run: MakeRun
) -> None:
    run = make_run("a")
    await database.save_run(make_run("b"), make_run("b").learners)
    await database.save_run(run, run.learners)
    assert database.read_run("a") == run
    later = run.changed(message="later")
    await database.save_run(later)
    assert database.read_run("a") == later
    await database.remove_run("a")
    assert database.read_run("a") is None


async def test_run_that_cannot_be_read_is_named(tmp_path: Path, make_run: MakeRun) -> None:
    path = tmp_path / "lipt.db"
    database = Database.open(path)
    await database.save_run(make_run("a"), make_run("a").learners)
    await database.close()
    reader = RunReader(path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE learners SET body = '{'")
    with pytest.raises(StateError, match=r"learner 0 of run a cannot be read.*lipt state check"):
        reader.read("a")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE learners")
    with pytest.raises(StateError, match=r"run a could not be read: no such table.*backup"):
        reader.read("a")
    reader.close()
