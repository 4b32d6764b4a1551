"""Readings: the coordinator's gauges at a scrape."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lipt.common.errors import LiptError, StateError
from lipt.common.observability.metrics import Readings
from lipt.common.states import LearnerState, RunState
from lipt.coordinator import instruments
from lipt.coordinator.compute.queue import HEAVY, LIGHT, ComputeQueue
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.uploads import free_bytes

# A scrape is given up if the service is too busy to answer.
_PATIENCE_SECONDS = 5.0


def in_event_loop(read: Callable[[], Readings]) -> Callable[[], Readings]:
    """Wrap `read` to run in the current event loop, for callers in other threads."""
    loop = asyncio.get_running_loop()

    async def compute() -> Readings:
        return read()

    return lambda: asyncio.run_coroutine_threadsafe(compute(), loop).result(_PATIENCE_SECONDS)


def state_readings(store: RunStore, dispatcher: Dispatcher, compute: ComputeQueue) -> Readings:
    runs = store.runs()
    by_state = Counter(store.shown_state(run) for run in runs)
    learners: Counter[LearnerState] = Counter()
    for run in store.live():
        if store.shown_state(run) is RunState.TRAINING:
            learners += run.count()
    waits: dict[str, list[float]] = {HEAVY: [], LIGHT: []}
    for job in compute.computations():
        if not job.computing:
            waits[job.queue].append(job.seconds)
    return {
        instruments.RUNS: {
            (state.value,): by_state[state] for state in RunState if state is not RunState.UNKNOWN
        },
        instruments.LEARNERS: {
            (state.value,): learners[state]
            for state in LearnerState
            if state is not LearnerState.UNKNOWN
        },
        instruments.WORKERS: {(): len(dispatcher.alive())},
        instruments.WORKERS_WAITING: {(): dispatcher.num_waiting()},
        instruments.LEASES: {(): dispatcher.leases.num_learners()},
        instruments.QUEUE: {(queue,): len(seconds) for queue, seconds in waits.items()},
        instruments.QUEUE_OLDEST: {
            (queue,): max(seconds, default=0.0) for queue, seconds in waits.items()
        },
        **_of_the_newest_soup(store),
    }


def _of_the_newest_soup(store: RunStore) -> Readings:
    newest = max(
        (run for run in store.runs() if run.state is RunState.READY),
        key=lambda run: run.ended_at or 0.0,
        default=None,
    )
    soup = None
    with suppress(LiptError):  # removed or unreadable runs have no figures
        soup = store.record(newest.run_id).soup if newest else None
    if soup is None:
        return {}
    return {
        instruments.SOUP_ACCURACY: {
            ("soup",): soup.soup_accuracy,
            ("initial",): soup.initial_accuracy,
            ("mean_learner",): soup.mean_learner_accuracy,
            ("best_learner",): soup.best_learner_accuracy,
        },
        instruments.SOUP_KEPT: {(): soup.num_kept},
    }


def machine_readings(compute: ComputeQueue, directory: Path) -> Readings:
    """Memory of the compute processes, and the free disk of `directory`; from any thread."""
    memory = compute.resident()
    free: dict[tuple[str, ...], float] = {}
    with suppress(StateError):  # no figure if the disk cannot be read
        free = {(): free_bytes(directory)}
    return {
        instruments.COMPUTE_RESIDENT: {(queue,): use.now_bytes for queue, use in memory.items()},
        instruments.COMPUTE_PEAK: {(queue,): use.peak_bytes for queue, use in memory.items()},
        instruments.COMPUTE_LIMIT: {(): compute.memory_limit_bytes},
        instruments.STORAGE_FREE: free,
    }
