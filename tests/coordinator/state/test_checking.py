from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from lipt.common.errors import StateError
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.maintenance import check_state
from lipt.coordinator.state.records import DataRecord
from tests.blob_files import flip_a_bit
from tests.coordinator.state.conftest import StateBench


def execute(directory: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(directory / "lipt.db")) as connection, connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute(statement)


def test_whole_state_has_no_problem(state: StateBench) -> None:
    checked = check_state(state.directory)
    assert checked.problems == ()
    assert checked.held == ()
    assert (checked.num_runs, checked.num_subsets, checked.num_diagnoses) == (3, 1, 2)
    files = list((state.directory / "blobs").glob("*/*"))
    assert checked.num_blobs == len(files)
    assert checked.num_bytes == sum(path.stat().st_size for path in files)


async def test_state_is_checked_while_it_is_served(state: StateBench) -> None:
    database = Database.open(state.directory / "lipt.db")
    (run, *_) = await database.load_runs()
    await database.save_run(run.changed(message="written a moment ago"))
    assert check_state(state.directory).problems == ()
    await database.save_run(run)
    await database.close()


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        ("ready theta*", r"theta\* of run name-ready"),
        ("ready theta_p", "theta_p of run name-ready"),
        ("ready result 0", "the result of learner 0 of run name-ready"),
        ("ready snapshot 0", "snapshot 0 of learner 0 of run name-ready"),
        ("training shard 1", "the shard of learner 1 of run name-training"),
        ("cancelled theta*", r"theta\* of run name-cancelled"),
        ("x" * 24, "subset grand .* of ready"),
        ("diagnosis of ", "diagnosis auto of the data"),
        ("diagnosis of ready", "diagnosis auto of ready"),
    ],
)
def test_missing_blob_is_named_with_who_needs_it(state: StateBench, text: str, whose: str) -> None:
    state.path(text).unlink()
    (problem,) = check_state(state.directory).problems
    with pytest.raises(ValueError, match=f"is not there, {whose} needs it"):
        raise ValueError(problem)


@pytest.mark.parametrize("text", ["ready shard 0", "cancelled result 0", "uploaded weights"])
def test_blob_that_nothing_needs_any_more_may_be_missing(state: StateBench, text: str) -> None:
    state.path(text).unlink()
    assert check_state(state.directory).problems == ()


def test_one_flipped_bit_is_found(state: StateBench) -> None:
    path = state.path("training result 0")
    flip_a_bit(path, 3)
    damaged, missing = check_state(state.directory).problems
    assert path.name in damaged
    assert "is damaged: its content has the digest" in damaged
    assert "the result of learner 0 of run name-training needs it" in missing


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE learners SET body = '{' WHERE run_id = 'ready'", "learner 0 of run ready cannot"),
        ("UPDATE runs SET body = json_remove(body, '$.fingerprint')", "run cancelled cannot be"),
        ("UPDATE subsets SET body = json_set(body, '$.lie', 1)", "subset k+ of run ready cannot"),
        (
            "UPDATE diagnoses SET body = '{' WHERE run_id IS NULL",
            "of diagnosis diagnosis of  cannot",
        ),
        ("UPDATE diagnoses SET body = '{' WHERE run_id = 'ready'", "ready of run ready cannot"),
        (
            "UPDATE diagnoses SET body = json_set(body, '$.run_id', 'x') WHERE run_id IS NULL",
            "diagnosis diagnosis of of run x: there is no such run",
        ),
        ("DELETE FROM runs WHERE run_id = 'ready'", "belongs to no row of runs"),
        ("DELETE FROM learners WHERE run_id = 'ready' AND learner_index = 0", "some are missing"),
        (
            "UPDATE subsets SET body = json_set(body, '$.num_examples', 1000000)",
            r"1000000 examples do not take \d+ bytes",
        ),
        (
            "UPDATE subsets SET body = json_set(body, '$.fingerprint', 'e')",
            "subset k+ of run ready: it is of the data e, its run of f{64}",
        ),
        ("UPDATE data_sets SET body = '{'", "the record of data f{64} cannot be read"),
        (
            "UPDATE runs SET body = json_remove(body, '$.pretrained_weights')",
            "is ready and has no theta_p",
        ),
        (
            "UPDATE learners SET body = json_set(body, '$.result', null) WHERE run_id = 'ready'",
            "learner 0 of run name-ready is done, its result is not",
        ),
    ],
)
def test_record_that_is_wrong_is_named(state: StateBench, statement: str, words: str) -> None:
    execute(state.directory, statement)
    problems = "\n".join(check_state(state.directory).problems)
    with pytest.raises(ValueError, match=words):
        raise ValueError(problems)


@pytest.mark.parametrize("name", ["notes.txt", "A" * 64])
def test_file_that_is_no_blob_is_named(state: StateBench, name: str) -> None:
    (state.directory / "blobs" / "ab").mkdir(exist_ok=True)
    (state.directory / "blobs" / "ab" / name).write_text("stray")
    (problem,) = check_state(state.directory).problems
    assert f"ab/{name} is no blob" in problem


def test_blob_in_the_wrong_folder_is_named(state: StateBench) -> None:
    path = state.path("ready theta*")
    (state.directory / "blobs" / "zz").mkdir()
    path.rename(state.directory / "blobs" / "zz" / path.name)
    assert "is in the wrong folder" in check_state(state.directory).problems[0]


def test_directory_without_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"no lipt\.db.*--state-dir"):
        check_state(tmp_path)


@pytest.mark.parametrize("content", ["", "no database" * 100])
def test_file_that_is_no_database_is_refused(state: StateBench, content: str) -> None:
    for path in state.directory.glob("lipt.db-*"):
        path.unlink()
    (state.directory / "lipt.db").write_text(content)
    with pytest.raises(StateError, match=r"lipt\.db"):
        check_state(state.directory)


async def serve(state: StateBench, *data: DataRecord) -> None:
    database = Database.open(state.directory / "lipt.db")
    await database.save_data(data)
    await database.close()


async def test_runs_of_other_data_than_was_served_last_are_named_and_are_no_fault(
    state: StateBench,
) -> None:
    await serve(state, state.data("e" * 64, served_at=2.0))
    checked = check_state(state.directory)
    assert checked.problems == ()
    ready, training = checked.held
    remedy = "Start the coordinator with the run's own data"
    served = f"it is of data f ({'f' * 64}), and the directory was last served with data e"
    assert ready == (
        f"run name-ready (ready) only gives what is stored: {served} ({'e' * 64}). {remedy}"
    )
    assert training.startswith(f"run name-training (training) is held: {served}")


async def test_run_is_of_the_data_by_whichever_fingerprint_it_is_bound_to_it(
    state: StateBench,
) -> None:
    await serve(
        state,
        state.data("e" * 64, served_at=2.0),
        state.data("f" * 64, served_at=3.0),
        state.data("full-" + "f" * 64, served_at=3.0),
    )
    assert check_state(state.directory).held == ()


def test_nobody_is_held_where_it_is_not_known_what_was_served(state: StateBench) -> None:
    execute(state.directory, "DELETE FROM data_sets")
    assert check_state(state.directory).held == ()
