"""Gauges: how the coordinator stands now, shown at `/metrics` beside its event counters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from lipt.common.observability.metrics import Gauge
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.compute.queue import ComputeQueue
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.runs.store import RunStore

# A scrape is given up where the service is too busy to answer.
_PATIENCE_SECONDS = 5.0


def from_other_threads(
    gauges: Callable[[], tuple[Gauge, ...]],
) -> Callable[[], tuple[Gauge, ...]]:
    """Let the running loop compute `gauges` for a caller in another thread: it owns the state."""
    loop = asyncio.get_running_loop()

    async def compute() -> tuple[Gauge, ...]:
        return gauges()

    return lambda: asyncio.run_coroutine_threadsafe(compute(), loop).result(_PATIENCE_SECONDS)


def gauges(store: RunStore, dispatcher: Dispatcher, compute: ComputeQueue) -> tuple[Gauge, ...]:
    """Runs, learners, workers, leases, and what waits to be computed."""
    runs = store.runs()
    by_state = Counter(store.shown_state(run) for run in runs)
    learners: Counter[LearnerState] = Counter()
    for run in runs:
        if store.shown_state(run) is RunState.TRAINING:
            learners += run.count()
    return (
        Gauge(
            "lipt_runs",
            "Runs by state.",
            "state",
            {state.value: by_state[state] for state in RunState if state is not RunState.UNKNOWN},
        ),
        Gauge(
            "lipt_learners",
            "Learners of runs in training, by state.",
            "state",
            {
                state.value: learners[state]
                for state in LearnerState
                if state is not LearnerState.UNKNOWN
            },
        ),
        Gauge("lipt_workers", "Workers that are there.", "", {"": len(dispatcher.alive())}),
        Gauge("lipt_leases", "Learners that a worker has now.", "", {"": len(dispatcher.leases)}),
        Gauge("lipt_queue", "Jobs that wait to be computed.", "lane", dict(compute.waiting())),
    )
