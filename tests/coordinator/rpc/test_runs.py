"""Runs by pages: of a real state, whose other parts are not asked."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from lipt.common.rpc.messages import enum_value
from lipt.common.states import RunState
from lipt.coordinator.rpc.messages import run_view
from lipt.coordinator.rpc.runs import RunService
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.v1 import run_pb2
from tests.coordinator.made_up_runs import made_up_run

NOBODY = cast("Any", None)


async def test_page_is_read_run_by_run_while_others_go_on_and_leaves_out_what_is_gone(
    database: Database,
) -> None:
    for number in range(90):
        run = made_up_run(f"e{number:02}", state=RunState.READY).changed(created_at=number)
        await database.save_run(run, run.learners)
    store = RunStore(database)
    await store.load()
    service = RunService(store, NOBODY, NOBODY, asyncio.Event(), why_waiting=lambda _: "")
    # Gone from the disk, and about to be gone from the store.
    await database.remove_run("e60")
    turns = 0

    async def note() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    noting = asyncio.create_task(note())
    first = await service.ListRuns(run_pb2.ListRunsRequest(page_size=70), NOBODY)
    noting.cancel()
    # Between each twenty runs of seventy.
    assert turns == 3
    request = run_pb2.ListRunsRequest(page_size=70, page_token=first.next_page_token)
    second = await service.ListRuns(request, NOBODY)
    assert second.next_page_token == ""
    ids = [run.run_id for page in (first, second) for run in page.runs]
    assert ids == [f"e{number:02}" for number in reversed(range(90)) if number != 60]
    assert first.runs[0].costs.bytes_to_workers == 0
    assert not first.runs[0].learners


HELD = "run name-r was made on other data."


@pytest.mark.parametrize(
    ("state", "held", "message"),
    [
        (
            RunState.TRAINING,
            HELD,
            f"{HELD} The run goes on by itself then, from where it is: training.",
        ),
        (RunState.READY, HELD, f"{HELD} Until then the run gives what is stored, and nothing new."),
        (RunState.FAILED, "", "none came."),
        (RunState.FAILED, HELD, "none came."),
    ],
)
async def test_a_run_says_why_it_is_held_or_has_failed(
    database: Database, state: RunState, held: str, message: str
) -> None:
    run, store = made_up_run(state=state), RunStore(database)
    await store.add(run.changed(message="none came." if state is RunState.FAILED else ""))
    store.hold(run.run_id, held)
    view = run_view(store, store.find(run.run_id))
    seen = "held" if held and state is RunState.TRAINING else state.value
    assert (enum_value(run_pb2.RunState.DESCRIPTOR, view.state), view.message) == (seen, message)
