from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import InitializationConfig
from lipt.common.errors import StateError
from lipt.coordinator.state.contents import read_contents
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.naming import named_digests
from lipt.coordinator.state.needs import named_by, needed_blobs
from tests.coordinator.state.conftest import StateBench


def named_slowly(directory: Path) -> set[str]:
    contents = read_contents(directory)
    of_runs = {blob.sha256 for run in contents.runs for blob in named_by(run)}
    given = (run.config.initialization.weights_sha256 for run in contents.runs)
    others = (*contents.subsets, *contents.diagnoses)
    return of_runs | set(filter(None, given)) | {record.blob.sha256 for record in others}


async def test_digests_are_those_of_the_records_in_full(state: StateBench) -> None:
    given = BlobName.of(b"given").sha256
    database = Database.open(state.directory / "lipt.db")
    run = next(it for it in await database.load_runs() if it.run_id == "training")
    initialization = InitializationConfig(weights_sha256=given)
    config = run.config.model_copy(update={"initialization": initialization})
    await database.save_run(run.changed(config=config))
    await database.close()
    named = set(named_digests(state.directory))
    assert named == named_slowly(state.directory)
    assert given in named
    needed = {need.blob.sha256 for need in needed_blobs(read_contents(state.directory))}
    assert needed < named
    assert state.put("uploaded weights").sha256 not in named


def test_record_that_is_no_json_names_nothing_and_hides_no_other(state: StateBench) -> None:
    with contextlib.closing(sqlite3.connect(state.directory / "lipt.db")) as connection, connection:
        for table in ("runs", "learners"):
            connection.execute(f"UPDATE {table} SET body = '{{' WHERE run_id = 'training'")
    named = set(named_digests(state.directory))
    assert named == named_slowly(state.directory)
    assert state.put("ready result 0").sha256 in named
    assert state.put("training result 0").sha256 not in named


def test_directory_without_a_state_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="there is no state"):
        list(named_digests(tmp_path))
