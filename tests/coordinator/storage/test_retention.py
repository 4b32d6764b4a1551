"""Ended runs that are too old or too many go; whatever is live, or in use, stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.errors import RunNotReadyError, StateError
from lipt.common.observability.logs import EventKind, Events
from lipt.common.states import RunState
from lipt.coordinator.compute.messages import Progressed
from lipt.coordinator.compute.queue import Computation
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.settings import StorageSettings
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord, RunSummary
from lipt.coordinator.storage.storage import Retention, overdue
from tests.clock import Clock
from tests.coordinator.fakes import FakeCompute
from tests.coordinator.made_up_runs import made_up_run

MakeRun = Callable[..., RunRecord]
DAY = 86_400.0
NOW = 1000 * DAY
RUN = RunSummary.of(made_up_run(state=RunState.READY))


def ended(make_run: MakeRun, run_id: str, days_ago: float, state: RunState = RunState.READY) -> Any:
    return make_run(run_id, state=state).changed(ended_at=NOW - days_ago * DAY)


class Bench:
    def __init__(self, database: Database) -> None:
        self.database, self.idle = database, Clock(0.0)
        self.store = RunStore(database, clock=self.idle)
        self.compute, self.events = FakeCompute(), Events()

    async def add(self, *runs: RunRecord) -> None:
        for run in runs:
            await self.store.add(run)
        self.idle.now += 2 * 3600.0

    def retention(self, sleep: Any = asyncio.sleep, **settings: Any) -> Retention:
        return Retention(
            self.store,
            self.compute.queue,
            StorageSettings(**settings),
            self.events,
            lambda: NOW,
            sleep,
        )

    async def left(self, **settings: Any) -> list[str]:
        await self.retention(**settings).apply()
        kept = [run.run_id for run in self.store.runs()]
        assert [run.run_id for run in await self.database.load_runs()] == sorted(kept)
        return kept


@pytest.fixture
def bench(database: Database) -> Bench:
    return Bench(database)


async def test_nothing_goes_unless_somebody_has_said_so(bench: Bench, make_run: MakeRun) -> None:
    await bench.add(*(ended(make_run, name, 900) for name in "abc"))
    assert await bench.left() == ["a", "b", "c"]


async def test_failed_and_cancelled_runs_go_and_live_ones_stay(
    bench: Bench, make_run: MakeRun
) -> None:
    await bench.add(
        ended(make_run, "a", 9, RunState.FAILED),
        ended(make_run, "b", 9, RunState.CANCELLED),
        make_run("c", state=RunState.TRAINING),
        make_run("d", state=RunState.MERGING),
    )
    assert await bench.left(keep_days=1, keep_runs=0) == ["c", "d"]


async def test_a_run_that_was_just_asked_for_stays(bench: Bench, make_run: MakeRun) -> None:
    await bench.add(ended(make_run, "a", 9), ended(make_run, "b", 9))
    bench.store.find("name-b")
    bench.idle.now += 3599.0
    assert await bench.left(keep_days=1) == ["b"]
    bench.idle.now += 2.0
    assert await bench.left(keep_days=1) == []


async def test_a_run_that_something_is_computed_for_stays(
    bench: Bench, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.add(ended(make_run, "a", 9), ended(make_run, "b", 9))
    job = Computation("dear", "SelectSubset", "b", 1, True, 5.0, Progressed("", 0, 0))
    monkeypatch.setattr(bench.compute, "computations", lambda: (job,))
    assert await bench.left(keep_days=1) == ["b"]


async def test_what_cannot_be_removed_is_there_as_before_and_goes_the_next_time(
    bench: Bench, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.add(ended(make_run, "a", 9), ended(make_run, "b", 9))

    async def full(run_id: str) -> None:
        raise StateError("no space left.")

    with monkeypatch.context() as patched:
        patched.setattr(bench.database, "remove_run", full)
        assert await bench.left(keep_days=1) == ["a", "b"]
    assert bench.events.count(EventKind.RETRIED, "collection") == 1
    assert await bench.left(keep_days=1) == []


async def test_runs_are_looked_at_every_so_often_and_first_after_a_while(
    bench: Bench, make_run: MakeRun
) -> None:
    await bench.add(ended(make_run, "a", 9))
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            assert [run.run_id for run in bench.store.runs()] == ["a"]
        else:
            raise asyncio.CancelledError

    with contextlib.suppress(asyncio.CancelledError):
        await bench.retention(sleep, keep_days=1, collect_every_seconds=60.0).run()
    assert pauses == [60.0, 60.0]
    assert bench.store.runs() == ()


async def test_a_live_run_is_not_removed(bench: Bench, make_run: MakeRun) -> None:
    await bench.add(make_run("a"))
    with pytest.raises(RunNotReadyError, match="only runs that have ended are removed"):
        await bench.store.remove("a")


@given(
    ends=st.lists(st.integers(0, 30), max_size=8),
    keep_days=st.none() | st.integers(1, 30),
    keep_runs=st.none() | st.integers(0, 9),
)
def test_overdue_is_what_either_rule_says(
    ends: list[int], keep_days: int | None, keep_runs: int | None
) -> None:
    runs = [replace(RUN, run_id=str(place), ended_at=float(end)) for place, end in enumerate(ends)]
    gone = overdue(runs, now=40 * DAY, keep_days=None, keep_runs=keep_runs)
    assert len(gone) == (0 if keep_runs is None else max(0, len(runs) - keep_runs))
    kept = [end for place, end in enumerate(ends) if runs[place] not in gone]
    # Nobody goes who ended after somebody who stays.
    assert max((run.ended_at or 0.0 for run in gone), default=0.0) <= min(kept, default=31)
    days = [replace(RUN, run_id=str(place), ended_at=end * DAY) for place, end in enumerate(ends)]
    old = overdue(days, now=40 * DAY, keep_days=keep_days, keep_runs=None)
    expected = [] if keep_days is None else [end for end in ends if 40 - end > keep_days]
    assert [run.ended_at for run in old] == sorted(end * DAY for end in expected)
