"""How many learners there are for workers, and the wait for that to change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from lipt.common.states import RunState
from lipt.coordinator.compute.scan import ScanClosed
from lipt.coordinator.dispatch.demand import Demand, DemandWatch, demand_of
from lipt.coordinator.dispatch.scans import Scans
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.runs.transitions import leased
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord
from tests.clock import Clock
from tests.coordinator.dispatch.made_up_scan import OPENED, SCAN, seeing_worker

MakeRun = Callable[..., RunRecord]


def scans() -> Scans:
    return Scans(30.0, Clock())


def one_leased(run: RunRecord) -> RunRecord:
    """The run with a worker that has its first learner."""
    return run.with_learner(
        leased(run.learners[0], worker_id="w", worker_name="w", device="cpu", party="p", kind="k")
    )


def test_learners_of_runs_in_training_are_queued_or_leased(make_run: MakeRun) -> None:
    runs = [one_leased(make_run("a", num_learners=3)), make_run("b", num_learners=2)]
    assert demand_of(runs) == Demand(num_queued=4, num_leased=1)


@pytest.mark.parametrize("state", [RunState.PENDING, RunState.INITIALIZING, RunState.SHARDING])
def test_runs_on_their_way_to_training_have_learners_that_come(
    state: RunState, make_run: MakeRun
) -> None:
    run = make_run(num_learners=5, state=state).changed(learners=())
    assert demand_of([run]) == Demand(num_coming=5)


@pytest.mark.parametrize("state", [RunState.MERGING, RunState.READY, RunState.CANCELLED])
def test_runs_whose_training_is_over_need_nobody(state: RunState, make_run: MakeRun) -> None:
    assert demand_of([make_run(state=state)]) == Demand()


async def test_demand_is_told_at_once_when_it_changes(
    database: Database, make_run: MakeRun
) -> None:
    store = RunStore(database)
    watch = DemandWatch(store, scans())
    waiting = asyncio.create_task(watch.wait(Demand(), wait_seconds=60.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    await store.add(make_run(num_learners=2))
    assert await waiting == Demand(num_queued=2)


async def test_what_the_caller_does_not_know_is_told_at_once(database: Database) -> None:
    watch = DemandWatch(RunStore(database), scans())
    assert await watch.wait(None, wait_seconds=60.0) == Demand()
    assert await watch.wait(Demand(num_leased=1), wait_seconds=60.0) == Demand()


async def test_wait_ends_with_what_is_known(database: Database, make_run: MakeRun) -> None:
    store = RunStore(database)
    await store.add(make_run(num_learners=2))
    known = Demand(num_queued=2)
    assert await DemandWatch(store, scans()).wait(known, wait_seconds=0.01) == known


async def test_run_that_is_held_asks_for_nobody(database: Database, make_run: MakeRun) -> None:
    store = RunStore(database)
    await store.add(make_run(num_learners=2))
    watch = DemandWatch(store, scans())
    store.hold("r", "its data is elsewhere")
    assert watch.current() == Demand()
    store.release("r")
    assert watch.current() == Demand(num_queued=2)


async def test_ranges_count_while_one_waits_for_a_worker(database: Database) -> None:
    open_scans = scans()
    watch = DemandWatch(RunStore(database), open_scans)
    waiting = asyncio.create_task(watch.wait(Demand(), wait_seconds=60.0))
    await asyncio.sleep(0)
    open_scans.note(OPENED)
    assert await waiting == Demand(num_ranges=3)
    waiting = asyncio.create_task(watch.wait(Demand(num_ranges=3), wait_seconds=60.0))
    for name in ("a", "b"):
        assert open_scans.take(seeing_worker(name)) is not None
        await asyncio.sleep(0)
        # As many as at first: whoever starts workers by it is not told of every range.
        assert not waiting.done()
    assert open_scans.take(seeing_worker("c")) is not None
    assert await waiting == Demand()
    open_scans.note(ScanClosed("", 0, 0, scan_id=SCAN.scan_id))
    assert watch.current() == Demand()
