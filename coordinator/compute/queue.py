"""Compute queue: jobs wait in one fair order in front of a heavy and a light process.

The heavy process has the data set, the models and the device. The light one has labels and stored
signals, so that a small request never waits for one that takes minutes. A light job that needs
more goes on to the heavy process.

Callers take turns; of one caller the oldest job goes first. The pipeline's own jobs count as one
caller. A job that nobody waits for any more is dropped, also while it is computed.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from time import monotonic
from typing import Any, TypeVar

from lipt.common.errors import QueueFullError
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.metrics import Meters
from lipt.common.process.machine import this_machine
from lipt.coordinator.compute.child import OpenContext, with_origin
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.jobs.pretraining import DataDescription
from lipt.coordinator.compute.light import LightContext
from lipt.coordinator.compute.messages import (
    Asked,
    Cost,
    DroppedError,
    Job,
    TooDearError,
    name_of,
)
from lipt.coordinator.compute.process import ComputeProcess, Resident, resident
from lipt.coordinator.compute.progress import Aside, OnProgress, Progressed
from lipt.coordinator.compute.scan import ScanClosed, ScanNews
from lipt.coordinator.instruments import JOB, QUEUE_WAIT
from lipt.coordinator.settings import CoordinatorSettings, compute_memory_bytes

ResultT = TypeVar("ResultT")

# The executors' names on the wire and in metrics.
HEAVY, LIGHT = "dear", "cheap"

_PIPELINE = frozenset({""})
_BY_ITSELF = Asked()
# A refused caller is told to come again within these bounds.
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 60.0
_NOTHING_YET = Progressed()


@dataclass(frozen=True)
class Computation:
    """A job that waits or is computed, as a watcher sees it.

    Attributes:
        lane: the name of its executor.
        run: the id of its run; empty for the data alone.
        num_callers: 0 where its run alone waits for it.
        seconds: for how long it has been computed, or has waited.
    """

    lane: str
    job: str
    run: str
    num_callers: int
    computing: bool
    seconds: float
    progress: Progressed


@dataclass(eq=False)
class Entry:
    """A job that waits or is computed.

    Attributes:
        number: ascending in the order of asking.
        turn: how many jobs had begun when it was asked for.
        since: when it was asked for, in seconds.
        ahead: the place in the queue that was reported last.
    """

    number: int
    turn: int
    since: float
    job: Job[Any]
    asked: Asked
    on_progress: OnProgress
    outcome: asyncio.Future[Any]
    ahead: int = 0
    latest: Progressed = _NOTHING_YET

    def report(self, progressed: Progressed) -> None:
        """Pass it on while somebody waits."""
        if not isinstance(progressed, Aside):
            self.latest = progressed
        if not self.outcome.done():
            self.on_progress(progressed)

    @property
    def callers(self) -> frozenset[str]:
        """Its callers now."""
        return _PIPELINE if self.asked.callers is None else self.asked.callers()


def fair_order(waiting: Iterable[Entry], ranks: Mapping[str, int], turn: int) -> list[Entry]:
    """The jobs in the order in which they are computed, if no others come.

    The next caller is the one with the lowest rank: the turn after its last job, or that of its
    arrival where that is later. So a newcomer passes at most the caller that was served last.

    Args:
        waiting: jobs without any caller are left out.
        ranks: of callers that had a job computed, the turn after it.
        turn: how many jobs have begun.
    """
    queues: defaultdict[str, deque[Entry]] = defaultdict(deque)
    for entry in sorted(waiting, key=lambda entry: entry.number):
        if callers := entry.callers:
            # Of several callers of one job the one whose turn is next.
            queues[min(callers, key=lambda name: (ranks.get(name, 0), name))].append(entry)
    heap = [
        (max(ranks.get(caller, 0), queue[0].turn), queue[0].number, caller)
        for caller, queue in queues.items()
    ]
    heapq.heapify(heap)
    ordered: list[Entry] = []
    while heap:
        _, _, caller = heapq.heappop(heap)
        queue = queues[caller]
        ordered.append(queue.popleft())
        turn += 1
        if queue:
            heapq.heappush(heap, (turn + 1, queue[0].number, caller))
    return ordered


@dataclass(eq=False)
class _Executor:
    """A process, the job that it computes, and the jobs that wait for it."""

    name: str
    process: ComputeProcess
    waiting: list[Entry] = field(default_factory=list)
    present: Entry | None = None
    task: asyncio.Task[None] | None = None
    began: float = 0.0
    turn: int = 0
    ranks: dict[str, int] = field(default_factory=dict)

    def in_order(self) -> list[Entry]:
        return fair_order(self.waiting, self.ranks, self.turn)

    def take(self, entry: Entry, now: float) -> None:
        """Make a waiting job the present one."""
        callers = entry.callers
        self.waiting.remove(entry)
        self.present, self.began = entry, now
        self.turn += 1
        self.ranks |= dict.fromkeys(callers, self.turn + 1)
        needed = frozenset[str]().union(*(other.callers for other in self.waiting))
        # A lower rank than a newcomer's matters no more.
        self.ranks = {
            name: rank for name, rank in self.ranks.items() if rank > self.turn or name in needed
        }


class ComputeQueue:
    """The jobs of one coordinator; safe to use from one event loop."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        events: Events | None = None,
        meters: Meters | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._settings = settings
        self._events = events or Events()
        self._meters = meters or Meters()
        self._clock = clock
        self._on_scan: Callable[[ScanNews], None] = lambda _: None
        self._numbers = count()
        self._reporting = self._stopped = False
        self.memory_limit_bytes = compute_memory_bytes(settings.limits, this_machine())
        open_context = partial(Context, settings)
        self._heavy = _Executor(HEAVY, self._process(open_context, "lipt-compute"))
        self._light: _Executor | None = None

    def share_scans(self, on_scan: Callable[[ScanNews], None]) -> None:
        """Call `on_scan` in the event loop with all that jobs say of their scans."""
        self._on_scan = on_scan

    def open_light(self, known: DataDescription) -> None:
        """Compute light jobs in a process of their own from here on."""
        open_context = partial(LightContext, self._settings, known=known)
        self._light = _Executor(LIGHT, self._process(open_context, "lipt-compute-light"))

    def warm(self) -> None:
        """Start the light process before its first job."""
        if self._light is not None:
            self._light.process.start()

    async def run(
        self,
        job: Job[ResultT],
        on_progress: OnProgress = lambda _: None,
        asked: Asked = _BY_ITSELF,
    ) -> ResultT:
        """The job's result; a caller that stops waiting drops it, also while it is computed.

        Args:
            job: a frozen value with a `run` method.
            on_progress: called in the event loop, also with the job's place in the queue.
            asked: for whom it is, and what it costs.

        Raises:
            QueueFullError: too many jobs of trainers wait already; a run's own are never refused.
            LiptError: as `ComputeProcess.run`.
        """
        job = with_origin(job)
        if self._light is not None and asked.cost < Cost.DEAR:
            try:
                return await self._wait(self._light, job, on_progress, asked)
            except TooDearError:
                asked = Asked(asked.run, asked.callers)
        open_scan = ""

        def hear(progressed: Progressed) -> None:
            nonlocal open_scan
            if isinstance(progressed, ScanNews):
                open_scan = "" if isinstance(progressed, ScanClosed) else progressed.scan_id
                self._on_scan(progressed)
            else:
                on_progress(progressed)

        try:
            return await self._wait(self._heavy, job, hear, asked)
        finally:
            if open_scan:  # the job ended early: nobody needs its ranges
                self._on_scan(ScanClosed(scan_id=open_scan))

    def waiting(self) -> Mapping[str, int]:
        """The number of waiting jobs, by executor."""
        light = len(self._light.waiting) if self._light is not None else 0
        return {LIGHT: light, HEAVY: len(self._heavy.waiting)}

    def oldest_seconds(self) -> Mapping[str, float]:
        """The age of the oldest waiting job, by executor; 0 where none waits."""
        now = self._clock()
        return {LIGHT: 0.0} | {
            executor.name: max((now - entry.since for entry in executor.waiting), default=0.0)
            for executor in self._executors()
        }

    def computations(self) -> tuple[Computation, ...]:
        """Present jobs, then waiting ones in their order, executor by executor."""
        now = self._clock()
        return tuple(
            Computation(
                lane=executor.name,
                job=name_of(entry.job),
                run=entry.asked.run,
                num_callers=0 if entry.asked.callers is None else len(entry.asked.callers()),
                computing=entry is executor.present,
                seconds=now - (executor.began if entry is executor.present else entry.since),
                progress=entry.latest,
            )
            for executor in self._executors()
            for entry in filter(None, (executor.present, *executor.in_order()))
        )

    def resident(self) -> Mapping[str, Resident]:
        """Memory of the running processes, by executor; read in any thread."""
        pids = {one.name: one.process.pid for one in self._executors()}
        found = {name: resident(pid) for name, pid in pids.items() if pid is not None}
        return {name: memory for name, memory in found.items() if memory is not None}

    async def stop(self) -> None:
        """End the processes for good; what they were doing is lost."""
        self._stopped = True
        for executor in self._executors():
            for entry in executor.waiting:
                entry.outcome.cancel()
            if executor.task is not None:
                executor.task.cancel()
                await asyncio.wait({executor.task})
            executor.process.stop()

    def _executors(self) -> tuple[_Executor, ...]:
        return (self._heavy,) if self._light is None else (self._heavy, self._light)

    def _process(self, open_context: OpenContext, name: str) -> ComputeProcess:
        return ComputeProcess(
            open_context, self._events, memory_bytes=self.memory_limit_bytes, name=name
        )

    async def _wait(
        self, executor: _Executor, job: Job[ResultT], on_progress: OnProgress, asked: Asked
    ) -> ResultT:
        if asked.callers is not None:
            self._require_room(executor, asked.callers())
        entry = Entry(
            next(self._numbers),
            executor.turn,
            self._clock(),
            job,
            asked,
            on_progress,
            asyncio.get_running_loop().create_future(),
        )
        executor.waiting.append(entry)
        self._proceed(executor)
        try:
            result: ResultT = await entry.outcome
        except asyncio.CancelledError:
            self._drop(executor, entry)
            raise
        return result

    def _require_room(self, executor: _Executor, callers: frozenset[str]) -> None:
        limits = self._settings.compute
        of_trainers = [entry for entry in executor.waiting if entry.asked.callers is not None]
        num_own = sum(bool(callers & entry.callers) for entry in of_trainers)
        if len(of_trainers) < limits.max_waiting and num_own < limits.max_waiting_per_caller:
            return
        # What has taken long so far most likely goes on for as long again.
        elapsed = 0.0 if executor.present is None else self._clock() - executor.began
        raise QueueFullError(
            num_waiting=len(of_trainers),
            num_own=num_own,
            max_waiting=limits.max_waiting,
            max_own=limits.max_waiting_per_caller,
            retry_after_seconds=min(max(elapsed, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS),
        )

    def _proceed(self, executor: _Executor) -> None:
        """Begin the next job if none is computed, and report the others' places soon."""
        if not self._reporting:
            self._reporting = True
            asyncio.get_running_loop().call_soon(self._report_places)
        order = () if executor.present is not None or self._stopped else executor.in_order()
        if order:
            entry, now = order[0], self._clock()
            executor.take(entry, now)
            self._meters.observe(QUEUE_WAIT, now - entry.since, executor.name)
            entry.report(Progressed("beginning", 0, 0))
            executor.task = asyncio.create_task(self._compute(executor, entry))

    def _report_places(self) -> None:
        self._reporting = False
        for executor in self._executors():
            first = 0 if executor.present is None else 1
            for ahead, entry in enumerate(executor.in_order(), start=first):
                if entry.ahead != ahead:
                    entry.ahead = ahead
                    entry.report(Progressed("waiting for its turn", 0, 0, ahead))

    async def _compute(self, executor: _Executor, entry: Entry) -> None:
        outcome = entry.outcome
        try:
            result = await executor.process.run(entry.job, entry.report)
            if not outcome.done():
                outcome.set_result(result)
        except asyncio.CancelledError:
            outcome.cancel()
            raise
        except DroppedError:
            outcome.cancel()
        except BaseException as error:  # noqa: BLE001 - belongs to whoever waits for it
            if not outcome.done():
                outcome.set_exception(error)
        finally:
            seconds = self._clock() - executor.began
            self._meters.observe(JOB, seconds, executor.name, name_of(entry.job))
            executor.present = None
            self._proceed(executor)

    def _drop(self, executor: _Executor, entry: Entry) -> None:
        waits = entry in executor.waiting
        if waits:
            executor.waiting.remove(entry)
        elif entry is executor.present:
            executor.process.drop()
        else:
            return  # it has ended
        self._events.record(
            EventKind.JOB_DROPPED,
            detail="waiting" if waits else "computing",
            job=name_of(entry.job),
            run=entry.asked.run,
        )
        self._proceed(executor)
