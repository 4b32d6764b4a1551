from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.errors import StateError
from lipt.common.images.formats import ImageFormat
from lipt.common.states import RunState
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord, RunSummary

MakeRun = Callable[..., RunRecord]


async def test_summaries_are_those_of_the_records_in_full(
    database: Database, make_run: MakeRun
) -> None:
    inputs = ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,))
    runs = (
        make_run("first").changed(created_at=1.0, inputs=None),
        make_run("second", state=RunState.READY).changed(
            created_at=2.0, ended_at=3.5, inputs=inputs, fingerprint="other"
        ),
        make_run("third", state=RunState.FAILED).changed(created_at=4.0, ended_at=5.0),
    )
    for run in reversed(runs):
        await database.save_run(run, run.learners)
    assert await database.load_summaries() == tuple(map(RunSummary.of, runs))


@pytest.mark.parametrize("body", ["{", '{"state": "somewhere"}', '{"state": null}'])
async def test_run_whose_state_cannot_be_read_is_named(
    tmp_path: Path, make_run: MakeRun, body: str
) -> None:
    database = Database.open(tmp_path / "lipt.db")
    await database.save_run(make_run("odd", state=RunState.READY))
    with contextlib.closing(sqlite3.connect(tmp_path / "lipt.db")) as connection, connection:
        connection.execute("UPDATE runs SET body = ?", (body,))
    with pytest.raises(StateError, match=r"run odd cannot be read.*lipt state check"):
        await database.load_summaries()
    await database.close()
