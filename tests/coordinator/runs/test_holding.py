from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lipt.common.errors import OtherDataError, StateError
from lipt.common.observability.logs import EventKind, Events
from lipt.common.states import RunState
from lipt.coordinator.runs.holding import Holding
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord

MakeRun = Callable[..., RunRecord]
CHANGED = OtherDataError("mine:data has the fingerprint b now, and a is needed.")


class Bench:
    """A run "r", and what was seen of it in every pause."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.events = Events()
        self.pauses: list[float] = []
        self.seen: list[tuple[RunState, str]] = []
        self.holding = Holding(store, self.events, self.pause)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.seen.append((self.store.shown_state(self.store.find("r")), self.store.held("r")))

    async def do(self, *answers: object) -> object:
        """An action that gives these answers, one after another."""
        left = list(answers)

        async def action() -> object:
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return await self.holding("r", action)


@pytest.fixture
async def bench(database: Database, make_run: MakeRun) -> Bench:
    store = RunStore(database)
    await store.add(make_run(state=RunState.MERGING))
    return Bench(store)


async def test_what_can_be_done_is_done_at_once(bench: Bench) -> None:
    assert await bench.do("soup") == "soup"
    assert bench.pauses == []
    assert bench.events.count(EventKind.RUN_HELD) == 0


async def test_a_run_is_held_until_its_data_is_back_and_then_goes_on(bench: Bench) -> None:
    assert await bench.do(CHANGED, CHANGED, CHANGED, "soup") == "soup"
    assert bench.pauses == [1.0, 2.0, 4.0]
    reason = f"run name-r waits for its own data: {CHANGED}"
    assert bench.seen == [(RunState.HELD, reason)] * 3
    assert bench.store.shown_state(bench.store.find("r")) is RunState.MERGING
    assert bench.events.count(EventKind.RUN_HELD) == 1


async def test_what_else_fails_is_raised_and_leaves_nothing_held(bench: Bench) -> None:
    with pytest.raises(StateError):
        await bench.do(CHANGED, StateError("full."))
    assert bench.store.held("r") == ""


async def test_who_waits_for_the_run_hears_that_it_goes_on(bench: Bench) -> None:
    heard: list[str] = []
    bench.store.listen(lambda run: heard.append(run.run_id))
    revision = bench.store.revision("r")
    await bench.do(CHANGED, "soup")
    assert heard == ["r"]
    assert await bench.store.wait_for_change("r", revision, timeout_seconds=0.0) > revision


async def test_a_run_that_is_given_up_is_not_held_any_more(bench: Bench) -> None:
    waiting = asyncio.Event()

    async def for_ever(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async def action() -> None:
        raise CHANGED

    holding = Holding(bench.store, bench.events, for_ever)
    task = asyncio.ensure_future(holding("r", action))
    await waiting.wait()
    assert bench.store.held("r")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.store.held("r") == ""
