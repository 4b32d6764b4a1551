"""Runs by pages: of a real state, whose other parts are not asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from lipt.common.states import RunState
from lipt.coordinator.rpc.runs import RunService
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord
from lipt.v1 import run_pb2

NOBODY = cast("Any", None)


async def test_page_is_read_run_by_run_while_others_go_on_and_leaves_out_what_is_gone(
    database: Database, make_run: Callable[..., RunRecord]
) -> None:
    for number in range(90):
        run = make_run(f"e{number:02}", state=RunState.READY).changed(created_at=number)
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
