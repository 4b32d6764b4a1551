"""Watching: the state of the whole service, for the page, `lipt top` and other watchers.

A run is sent again only after it has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict

from lipt.common.errors import InvalidRequestError, UnknownRunError
from lipt.coordinator.compute.queue import Computation, ComputeQueue
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.rpc.messages import optional_timestamp, run_view, timestamp
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.records import RunSummary
from lipt.v1 import info_pb2 as pb
from lipt.v1 import run_pb2

DEFAULT_INTERVAL_SECONDS = 1.0
DEFAULT_NUM_RUNS = 20
_MIN_INTERVAL_SECONDS, _MAX_INTERVAL_SECONDS = 0.2, 60.0
_MAX_NUM_RUNS = 200
_MAX_WORKERS = 500
_SIGN_OF_LIFE_SECONDS = 5.0


class Watching:
    """Shows one coordinator to its watchers."""

    def __init__(
        self,
        store: RunStore,
        dispatcher: Dispatcher,
        compute: ComputeQueue,
        stopping: asyncio.Event,
        *,
        wall_clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._compute = compute
        self._stopping = stopping
        self._wall_clock = wall_clock

    async def answers(
        self, *, interval_seconds: float, num_runs: int
    ) -> AsyncIterator[pb.WatchServiceResponse]:
        """The service's state: once, then whenever it has changed, until it stops.

        Args:
            interval_seconds: between two answers, at least.
            num_runs: so many of the newest runs are shown, and all that have not ended.

        Raises:
            InvalidRequestError: an argument is out of range.
        """
        fast_enough = interval_seconds <= _MAX_INTERVAL_SECONDS  # also refuses NaN
        if not fast_enough or not 0 < num_runs <= _MAX_NUM_RUNS:
            raise InvalidRequestError(
                f"interval_seconds {interval_seconds} is above {_MAX_INTERVAL_SECONDS:g}, or "
                f"num_runs {num_runs} is outside 1..{_MAX_NUM_RUNS}."
            )
        pause = max(interval_seconds, _MIN_INTERVAL_SECONDS)
        silent_turns = max(math.ceil(_SIGN_OF_LIFE_SECONDS / pause), 1)
        told: dict[str, tuple[int, str]] = {}
        last, turns = b"", silent_turns
        while not self._stopping.is_set():
            answer = self._answer(told, num_runs)
            essence = _essence(answer)
            if answer.runs or essence != last or turns >= silent_turns:
                yield answer
                last, turns = essence, 0
            turns += 1
            await self._rest(pause)

    def workers(self) -> list[pb.WorkerInfo]:
        """All workers that are there."""
        return list(map(self._worker, self._dispatcher.alive()))

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _answer(self, told: dict[str, tuple[int, str]], num_runs: int) -> pb.WatchServiceResponse:
        """The present state with the runs that differ from `told`, which is updated."""
        now = self._wall_clock()
        alive = self._dispatcher.alive()
        shown = alive
        if len(alive) > _MAX_WORKERS:
            busy = self._dispatcher.leases.holders()
            shown = tuple(sorted(alive, key=lambda worker: worker.worker_id not in busy))
        return pb.WatchServiceResponse(
            now=timestamp(now),
            runs=self._changed(told, num_runs),
            workers=map(self._worker, shown[:_MAX_WORKERS]),
            num_workers=len(alive),
            computations=map(_computation, self._compute.computations()),
            num_runs=len(self._store.runs()),
        )

    def _changed(self, told: dict[str, tuple[int, str]], num_runs: int) -> list[run_pb2.Run]:
        changed: list[run_pb2.Run] = []
        for place, summary in enumerate(reversed(self._store.runs())):
            if place >= num_runs and summary.state.ended:
                continue
            # What it waits for may change while its revision stays.
            standing = (self._store.revision(summary.run_id), self._why_waiting(summary))
            if told.get(summary.run_id) != standing:
                told[summary.run_id] = standing
                with contextlib.suppress(UnknownRunError):  # it is just being removed
                    run = self._store.record(summary.run_id)
                    changed.append(run_view(self._store, run, waiting=standing[1]))
        return changed

    def _why_waiting(self, run: RunSummary) -> str:
        # The record of one that has ended would be read for nothing.
        if run.state.ended:
            return ""
        return self._dispatcher.why_waiting(self._store.record(run.run_id))

    def _worker(self, worker: WorkerRecord) -> pb.WorkerInfo:
        held = self._dispatcher.leases.held_by(worker.worker_id)
        scored = self._dispatcher.scans.held_by(worker.worker_id)
        learner = f"{self._store.find(held.run_id).name}/{held.learner}" if held else ""
        joined_at = self._wall_clock() - self._dispatcher.workers.seconds_since_joined(worker)
        return pb.WorkerInfo(
            worker_id=worker.worker_id,
            name=worker.name,
            device=worker.device,
            versions=worker.versions,
            assignment=str(scored) if scored else learner,
            seconds_since_heard=self._dispatcher.seconds_since_heard(worker),
            idle_reason=self._dispatcher.why_idle(worker),
            joined_at=timestamp(joined_at),
            certificate_expires_at=optional_timestamp(worker.binding.caller.expires_at),
        )


def _computation(computation: Computation) -> pb.Computation:
    return pb.Computation(
        lane=computation.lane,
        job=computation.job,
        run_id=computation.run,
        num_callers=computation.num_callers,
        computing=computation.computing,
        seconds=computation.seconds,
        progress=run_pb2.Progress(**asdict(computation.progress)),
    )


def _essence(answer: pb.WatchServiceResponse) -> bytes:
    """The parts whose change is news; passing time is not."""
    kept = pb.WatchServiceResponse(
        workers=answer.workers,
        num_workers=answer.num_workers,
        computations=answer.computations,
        num_runs=answer.num_runs,
    )
    for worker in kept.workers:
        worker.ClearField("seconds_since_heard")
        worker.ClearField("joined_at")
    for computation in kept.computations:
        computation.ClearField("seconds")
    return kept.SerializeToString(deterministic=True)
