from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lipt.common.observability.metrics import Gauge, Meters
from lipt.common.states import RunState
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.instruments import (
    COMPUTE_LIMIT,
    COMPUTE_PEAK,
    COMPUTE_RESIDENT,
    LEARNERS,
    RUNS,
    SOUP_ACCURACY,
    SOUP_KEPT,
    STAGES,
    STORAGE_FREE,
    WORKERS_WAITING,
)
from lipt.coordinator.metrics import measure_stages, of_the_machine, of_the_state
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import CostRecord, RunRecord
from tests.coordinator.fakes import SOUP_RECORD, FakeCompute
from tests.meters import observed


def dispatcher_of(store: RunStore) -> Dispatcher:
    return Dispatcher(store, lease_seconds=1.0, clock=lambda: 0.0, wall_clock=lambda: 0.0)


async def test_a_run_that_is_held_is_counted_as_held_and_its_learners_not_as_in_training(
    database: Database, make_run: Callable[..., RunRecord]
) -> None:
    store = RunStore(database)
    for run_id, state in (("r", RunState.TRAINING), ("s", RunState.READY), ("t", RunState.MERGING)):
        await store.add(make_run(run_id, state=state))
    dispatcher = dispatcher_of(store)

    def figures(gauge: Gauge) -> Mapping[str, float]:
        found = of_the_state(store, dispatcher, FakeCompute().queue)[gauge]
        return {key: value for (key,), value in found.items() if value}

    assert figures(RUNS) == {"training": 1, "ready": 1, "merging": 1}
    assert figures(LEARNERS) == {"queued": 3}
    for run_id in "rst":
        store.hold(run_id, "other data.")
    assert figures(RUNS) == {"held": 2, "ready": 1}
    assert figures(LEARNERS) == {}


async def test_the_soup_is_the_newest_ready_run_s(
    database: Database, make_run: Callable[..., RunRecord]
) -> None:
    store = RunStore(database)
    dispatcher = dispatcher_of(store)

    shown = of_the_state(store, dispatcher, FakeCompute().queue)
    assert SOUP_ACCURACY not in shown
    assert shown[WORKERS_WAITING] == {(): 0}
    for run_id, ended_at, accuracy in (("r", 5.0, 0.5), ("s", 9.0, 0.9), ("t", 7.0, 0.7)):
        ready = make_run(run_id, state=RunState.READY)
        soup = SOUP_RECORD.changed(soup_accuracy=accuracy, best_learner_accuracy=0.3, num_kept=2)
        await store.add(ready.changed(soup=soup, ended_at=ended_at))
    shown = of_the_state(store, dispatcher, FakeCompute().queue)
    assert shown[SOUP_ACCURACY][("soup",)] == 0.9
    assert shown[SOUP_ACCURACY][("best_learner",)] == 0.3
    assert shown[SOUP_KEPT] == {(): 2}


async def test_stages_are_measured_once_of_each_run_that_becomes_ready(
    database: Database, make_run: Callable[..., RunRecord]
) -> None:
    store, meters = RunStore(database), Meters()
    await store.add(make_run("before", state=RunState.READY))
    await store.add(make_run("now", state=RunState.MERGING))
    measure_stages(store, meters)
    await store.update("before", lambda run: run.changed(message="is shown anew"))
    costs = CostRecord(initialization_seconds=1.0, training_seconds=20.0, merging_seconds=3.0)
    await store.update("now", lambda run: run.changed(state=RunState.READY, costs=costs))
    await store.update("now", lambda run: run.changed(message="is shown anew"))
    totals = {stage: total for (stage,), (_, total) in observed(meters, STAGES).items()}
    assert totals == {"initialization": 1.0, "sharding": 0.0, "training": 20.0, "merging": 3.0}


def test_a_lane_without_a_process_has_no_memory(tmp_path: Path) -> None:
    shown = of_the_machine(FakeCompute().queue, tmp_path)
    assert shown[COMPUTE_RESIDENT] == {("dear",): 5}
    assert shown[COMPUTE_PEAK] == {("dear",): 7}
    assert shown[COMPUTE_LIMIT] == {(): 2**30}
    assert shown[STORAGE_FREE][()] > 0
    assert of_the_machine(FakeCompute().queue, tmp_path / "gone")[STORAGE_FREE] == {}
