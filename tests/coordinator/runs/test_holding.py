from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from lipt.common.errors import ComputeError, OtherDataError, RunNotReadyError
from lipt.common.inputs.specs import (
    Column,
    ColumnFormat,
    ColumnsFormat,
    ColumnsSpec,
    ColumnType,
    ImageSpec,
)
from lipt.common.observability.logs import EventKind, Events
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.compute.messages import Progressed
from lipt.coordinator.runs.driver import RunDriver
from lipt.coordinator.runs.holding import (
    find_ready,
    hold_runs_of_other_data,
    how_far,
    why_held,
)
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import DataRecord
from tests.clock import Clock
from tests.coordinator.fakes import DATA, FakeCompute
from tests.coordinator.made_up_runs import made_up_run

CHANGED = OtherDataError("mine:data has the fingerprint b now, and a is needed.")


def patient(store: RunStore, events: Events, sleep: Any) -> Any:
    """Repeats what a run waits for, as its driver does."""

    async def restore(*_: object) -> None:
        raise AssertionError("nothing is damaged")

    driver = RunDriver(
        store,
        FakeCompute().queue,
        restore=restore,
        wall_clock=Clock(),
        deadline_clock=Clock(),
        events=events,
        sleep=sleep,
    )
    return driver._patiently


class Bench:
    """A run "r", and what was seen of it in every pause."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.events = Events()
        self.pauses: list[float] = []
        self.seen: list[tuple[RunState, str]] = []
        self.holding = patient(store, self.events, self.pause)

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

        return await self.holding("r", action, stage="stage")


@pytest.fixture
async def bench(database: Database) -> Bench:
    store = RunStore(database)
    await store.add(made_up_run(state=RunState.MERGING))
    return Bench(store)


async def test_a_run_is_held_until_its_data_is_back_and_then_goes_on(bench: Bench) -> None:
    assert await bench.do(CHANGED, CHANGED, CHANGED, "soup") == "soup"
    assert bench.pauses == [1.0, 2.0, 4.0]
    reason = f"run name-r waits for its own data: {CHANGED}"
    assert bench.seen == [(RunState.HELD, reason)] * 3
    assert bench.store.shown_state(bench.store.find("r")) is RunState.MERGING
    assert bench.events.count(EventKind.RUN_HELD) == 1


async def test_what_else_fails_is_raised_and_leaves_nothing_held(bench: Bench) -> None:
    with pytest.raises(ComputeError):
        await bench.do(CHANGED, ComputeError("gone."))
    assert bench.store.held("r") == ""


async def test_a_run_that_is_given_up_is_not_held_any_more(bench: Bench) -> None:
    waiting = asyncio.Event()

    async def for_ever(_: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async def action() -> None:
        raise CHANGED

    holding = patient(bench.store, bench.events, for_ever)
    task = asyncio.ensure_future(holding("r", action, stage="stage"))
    await waiting.wait()
    assert bench.store.held("r")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.store.held("r") == ""


OWN, FULL = "f" * 64, "full-" + "a" * 64
OTHER = replace(DATA, source="other", fingerprint="e" * 64)


def test_a_run_of_other_data_is_told_both_fingerprints_both_sources_and_the_remedy() -> None:
    assert why_held(made_up_run(), OTHER, source="mine:data") == (
        f"run name-r was made on data with fingerprint {OWN} (mine:data), this coordinator now "
        f"serves other with {'e' * 64}. Start the coordinator with the run's own data."
    )
    assert why_held(made_up_run(), OTHER, or_else=", or leave the run out").endswith(
        "own data, or leave the run out."
    )


def test_a_run_is_compared_by_the_kind_of_fingerprint_that_it_is_bound_by() -> None:
    both = replace(DATA, fingerprint=FULL, sampled_fingerprint=OWN)
    assert why_held(made_up_run(), both) == ""
    assert why_held(made_up_run().changed(fingerprint=FULL), both) == ""
    other = replace(both, sampled_fingerprint="e" * 64)
    assert f"serves fake with {'e' * 64}" in why_held(made_up_run(), other)


def test_a_full_fingerprint_needs_a_coordinator_that_reads_everything() -> None:
    reason = why_held(made_up_run().changed(fingerprint=FULL), DATA)
    assert f"by the full fingerprint {FULL}" in reason
    assert reason.endswith("Start the coordinator with --fingerprint full.")


def test_images_of_another_size_are_other_data_as_well() -> None:
    reason = why_held(made_up_run(), replace(DATA, inputs=ImageSpec(3, 16, 16)))
    assert "looks at 1x8x8 images, and this coordinator has fake as 3x16x16 images" in reason
    assert "--image-size" in reason


async def test_runs_of_other_data_are_held_and_those_that_have_not_ended_are_counted(
    database: Database,
) -> None:
    store, events = RunStore(database), Events()
    for run_id, state in (("r", RunState.MERGING), ("done", RunState.READY)):
        await store.add(made_up_run(run_id, state=state))
    await store.add(made_up_run("own").changed(fingerprint=OTHER.fingerprint))
    known = DataRecord(fingerprint=OWN, source="mine:data", num_examples=9, served_at=1.0)
    await database.save(known)
    await hold_runs_of_other_data(store, OTHER, database, events)
    assert "(mine:data)" in store.held("r")
    assert "(mine:data)" in store.held("done")
    assert store.held("own") == ""
    shown = [store.shown_state(run) for run in store.runs()]
    assert shown == [RunState.HELD, RunState.READY, RunState.TRAINING]
    assert events.count(EventKind.RUN_HELD) == 1


async def test_what_waits_for_a_run_that_is_held_is_refused(database: Database) -> None:
    store = RunStore(database)
    await store.add(made_up_run())
    with pytest.raises(RunNotReadyError, match="is training"):
        find_ready(store, "r")
    store.hold("r", "other data.")
    with pytest.raises(OtherDataError, match="other data"):
        find_ready(store, "r")
    ended = await store.update("r", lambda run: run.changed(state=RunState.READY))
    assert find_ready(store, "r") == ended


def test_columns_of_another_type_are_other_data_as_well() -> None:
    column = Column("x", ColumnType.FLOAT32, (4,))
    run = made_up_run().changed(inputs=ColumnsFormat((ColumnFormat(column),)))
    assert why_held(run, replace(DATA, inputs=ColumnsSpec((column,)))) == ""
    doubles = replace(column, type=ColumnType.FLOAT64)
    reason = why_held(run, replace(DATA, inputs=ColumnsSpec((doubles,))))
    assert "looks at x float32[4], and this coordinator has fake as x float64[4]" in reason
    assert "--image-size" not in reason


def test_run_under_way_says_how_far_it_is_and_how_to_follow_it() -> None:
    run = made_up_run()
    run = run.with_learner(run.learners[1].changed(state=LearnerState.DONE))
    assert how_far(run, Progressed()) == (
        "run name-r is training (1 of 3 learners are in). Follow it with: lipt run watch name-r"
    )
    merging = made_up_run(state=RunState.MERGING)
    assert how_far(merging, Progressed("merging learners", 2, 3)) == (
        "run name-r is merging (merging learners, 2 of 3). Follow it with: lipt run watch name-r"
    )
    assert "(waiting for its turn, 3 ahead)" in how_far(
        merging, Progressed("waiting for its turn", ahead=3)
    )
    pending = made_up_run(state=RunState.PENDING)
    assert "run name-r is pending. " in how_far(pending, Progressed())


@pytest.mark.parametrize(
    ("state", "message", "said"),
    [
        (RunState.FAILED, "its workers went home.", "has failed: its workers went home."),
        (RunState.FAILED, "no sentence", "has failed: no sentence."),
        # As the driver's record has it.
        (RunState.CANCELLED, "cancelled", "was cancelled."),
    ],
)
def test_run_that_will_never_be_ready_says_why(state: RunState, message: str, said: str) -> None:
    run = made_up_run(state=state).changed(message=message)
    expected = f"run name-r {said} Start another: lipt run start"
    assert how_far(run, Progressed("merging", 1, 2)) == expected
