from __future__ import annotations

from collections.abc import Callable, Mapping

from lipt.common.states import RunState
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.metrics import gauges
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord
from tests.coordinator.fakes import FakeCompute


async def test_a_run_that_is_held_is_counted_as_held_and_its_learners_not_as_in_training(
    database: Database, make_run: Callable[..., RunRecord]
) -> None:
    store = RunStore(database)
    for run_id, state in (("r", RunState.TRAINING), ("s", RunState.READY), ("t", RunState.MERGING)):
        await store.add(make_run(run_id, state=state))
    dispatcher = Dispatcher(store, lease_seconds=1.0, clock=lambda: 0.0, wall_clock=lambda: 0.0)

    def figures(name: str) -> Mapping[str, float]:
        shown = gauges(store, dispatcher, FakeCompute().queue)
        (found,) = [gauge for gauge in shown if gauge.name == name]
        return {key: value for key, value in found.values.items() if value}

    assert figures("lipt_runs") == {"training": 1, "ready": 1, "merging": 1}
    assert figures("lipt_learners") == {"queued": 3}
    for run_id in "rst":
        store.hold(run_id, "other data.")
    assert figures("lipt_runs") == {"held": 2, "ready": 1}
    assert figures("lipt_learners") == {}
