"""State that the first released schema holds, as that version wrote it: schema_1.sql.

Made with `sqlite3.Connection.iterdump` from a coordinator's lipt.db: one run that is
ready, with snapshots and a subset; one with a learner at a worker; one cancelled.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.errors import StateError
from lipt.common.inputs.columns import Column, ColumnType
from lipt.common.inputs.formats import ColumnFormat, ColumnsFormat
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.runs.store import LearnerProgress, RunStore
from lipt.coordinator.state.contents import read_contents
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.migrations import MIGRATIONS, migrate
from lipt.coordinator.state.records import RunRecord

SCHEMA_1 = Path(__file__).parent / "schema_1.sql"
SUBSET_KEY = "8fb70a0a11ebd3819e07a98050543eb903b1ce27ace864c8b02a1f0b58b24543"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A state directory of the first schema."""
    with contextlib.closing(sqlite3.connect(tmp_path / "lipt.db")) as connection:
        connection.executescript(SCHEMA_1.read_text())
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    return tmp_path


async def test_first_schema_opens_with_everything_in_it(old: Path) -> None:
    database = Database.open(old / "lipt.db")
    ready, training, cancelled = await database.load_runs()
    assert [run.name for run in (ready, training, cancelled)] == ["first", "second", "third"]
    assert [run.state for run in (ready, training)] == [RunState.READY, RunState.TRAINING]
    assert cancelled.state is RunState.CANCELLED
    assert ready.pretrained_weights is not None
    assert [len(learner.snapshots) for learner in ready.learners] == [1, 1]
    assert [learner.ingredient is not None for learner in ready.learners] == [True, True]
    assert [learner.state for learner in training.learners] == [
        LearnerState.LEASED,
        LearnerState.QUEUED,
    ]
    assert training.training_started_at is not None
    subset = await database.find_subset(SUBSET_KEY)
    assert subset is not None
    assert await database.find_subsets(ready.run_id, subset.digest) == (subset,)
    await database.close()
    with contextlib.closing(sqlite3.connect(old / "lipt.db")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


async def test_first_schema_s_worker_finishes_its_learner_after_the_upgrade(old: Path) -> None:
    database = Database.open(old / "lipt.db")
    store = RunStore(database)
    await store.load()
    dispatcher = Dispatcher(store, lease_seconds=30.0, clock=lambda: 0.0, wall_clock=lambda: 0.0)
    dispatcher.restore()
    run = store.find("second")
    learner = run.learners[0]
    key = AssignmentKey(run.run_id, 0)
    assert not dispatcher.heartbeat(learner.worker_id, key, learner.epoch, LearnerProgress())
    await dispatcher.fail(learner.worker_id, key, learner.epoch, "no reason")
    (again,) = [item for item in await database.load_runs() if item.name == "second"]
    assert again.learners[0].account == "attempt 1 of 3 on one: no reason"
    await database.close()


def test_first_schema_is_read_without_being_changed(old: Path) -> None:
    contents = read_contents(old)
    assert (contents.schema, contents.problems) == (1, ())
    assert [run.name for run in contents.runs] == ["first", "second", "third"]
    assert [subset.key for subset in contents.subsets] == [SUBSET_KEY]
    assert read_contents(old).schema == 1


@pytest.mark.parametrize("seen", range(len(MIGRATIONS) + 1))
def test_every_schema_leads_to_the_same_newest_one(seen: int) -> None:
    def schema(*steps: tuple[str, ...]) -> list[tuple[str]]:
        with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            for known in steps:
                migrate(connection, known)
            found: list[tuple[str]] = connection.execute(
                "SELECT sql FROM sqlite_master ORDER BY name"
            ).fetchall()
            return found

    assert schema(MIGRATIONS[:seen], MIGRATIONS) == schema(MIGRATIONS)


async def test_record_that_cannot_be_read_is_refused_at_the_start(
    tmp_path: Path, make_run: Callable[..., RunRecord]
) -> None:
    database = Database.open(tmp_path / "lipt.db")
    run = make_run()
    await database.save_run(run, run.learners)
    await database.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "lipt.db")) as connection, connection:
        connection.execute("UPDATE learners SET body = json_set(body, '$.loss', null)")
    database = Database.open(tmp_path / "lipt.db")
    with pytest.raises(StateError, match=r"learner 0 of run r.*loss.*lipt state check"):
        await database.load_runs()
    await database.close()


async def test_fifth_schema_s_images_are_inputs_after_the_upgrade(
    tmp_path: Path, make_run: Callable[..., RunRecord]
) -> None:
    made, pending = make_run("made"), make_run("pending").changed(inputs=None)
    with contextlib.closing(sqlite3.connect(tmp_path / "lipt.db", isolation_level=None)) as old:
        migrate(old, MIGRATIONS[:5])
        for run in (made, pending):
            body = run.model_dump(mode="json", exclude={"learners"})
            body["image"] = body.pop("inputs")
            values = (run.run_id, run.name, run.request_id, run.created_at, json.dumps(body))
            old.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?)", values)
    # As it is, and after the upgrade.
    assert [run.inputs for run in read_contents(tmp_path).runs] == [made.inputs, None]
    database = Database.open(tmp_path / "lipt.db")
    assert [run.inputs for run in await database.load_runs()] == [made.inputs, None]
    await database.close()
    assert read_contents(tmp_path).schema == len(MIGRATIONS)


async def test_runs_of_either_kind_of_input_are_read_as_they_were_written(
    tmp_path: Path, make_run: Callable[..., RunRecord]
) -> None:
    column = Column("x", ColumnType.BFLOAT16, (2,), standardized=True)
    inputs = ColumnsFormat((ColumnFormat(column, (0.1, -3.0), (1.0, 1e-9)),))
    runs = [make_run("images"), make_run("columns").changed(inputs=inputs)]
    database = Database.open(tmp_path / "lipt.db")
    for run in runs:
        await database.save_run(run, run.learners)
    assert {run.run_id: run.inputs for run in await database.load_runs()} == {
        run.run_id: run.inputs for run in runs
    }
    await database.close()
