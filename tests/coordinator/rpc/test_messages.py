from __future__ import annotations

from collections.abc import Callable

import pytest

from lipt.common.rpc.messages import enum_value
from lipt.common.states import RunState
from lipt.coordinator.rpc.messages import run_view
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord
from lipt.v1 import run_pb2

MakeRun = Callable[..., RunRecord]
HELD = "run name-r was made on other data."


async def shown(
    database: Database, run: RunRecord, held: str, *, message: str = ""
) -> tuple[str, str]:
    """A run's state and message as peers see them."""
    store = RunStore(database)
    await store.add(run.changed(message=message))
    store.hold(run.run_id, held)
    view = run_view(store, store.find(run.run_id))
    return enum_value(run_pb2.RunState.DESCRIPTOR, view.state), view.message


async def test_a_run_that_is_held_says_so_why_and_from_where_it_goes_on(
    database: Database, make_run: MakeRun
) -> None:
    state, message = await shown(database, make_run(), HELD)
    assert state == "held"
    assert message == f"{HELD} The run goes on by itself then, from where it is: training."


async def test_a_run_of_other_data_that_is_ready_says_what_it_still_gives(
    database: Database, make_run: MakeRun
) -> None:
    state, message = await shown(database, make_run(state=RunState.READY), HELD)
    assert state == "ready"
    assert message == f"{HELD} Until then the run gives what is stored, and nothing new."


@pytest.mark.parametrize("held", ["", HELD])
async def test_a_run_that_failed_says_why_it_did(
    database: Database, make_run: MakeRun, held: str
) -> None:
    run = make_run(state=RunState.FAILED)
    assert await shown(database, run, held, message="none came.") == ("failed", "none came.")
