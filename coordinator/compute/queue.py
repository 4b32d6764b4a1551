"""Compute queue: fair turns of callers, for a heavy and a light process.

The light process reads only labels and stored signals, so a small request never waits for minutes.
Jobs that need more move to the heavy one. A job without callers is dropped, even while it runs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from operator import itemgetter
from time import monotonic
from typing import Any, TypeVar

from lipt.common.errors import QueueFullError
from lipt.common.observability.logs import EventKind, Events, log_context
from lipt.common.observability.metrics import Meters
from lipt.common.observability.tracing import current_traceparent
from lipt.common.process import this_machine
from lipt.coordinator.compute.context import Context, DataDescription, LightContext
from lipt.coordinator.compute.messages import (
    DroppedError,
    HeavyJobError,
    Job,
    JobOptions,
    News,
    OnProgress,
    Order,
    Progressed,
    ScanClosed,
    ScanNews,
    name_of,
)
from lipt.coordinator.compute.process import ComputeProcess, OpenContext, Resident, resident
from lipt.coordinator.instruments import JOB, QUEUE_WAIT
from lipt.coordinator.settings import CoordinatorSettings, compute_memory_bytes

ResultT = TypeVar("ResultT")

HEAVY, LIGHT = "heavy", "light"

_PIPELINE = frozenset({""})
_BY_ITSELF = JobOptions()
# Bounds of the retry delay sent to a refused caller.
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 60.0
_NOTHING_YET = Progressed()


@dataclass(frozen=True)
class Computation:
    """A job in status messages: `seconds` running or queued; no `run` for the data alone."""

    queue: str
    job: str
    run: str
    num_callers: int
    computing: bool
    seconds: float
    progress: Progressed


@dataclass(eq=False)
class Entry:
    """A job, queued at `since` seconds after `turn` jobs had started; `number` is its arrival."""

    number: int
    turn: int
    since: float
    job: Job[Any]
    options: JobOptions
    on_news: Callable[[News], None]
    outcome: asyncio.Future[Any]
    ahead: int = 0
    latest: Progressed = _NOTHING_YET

    def report(self, news: News) -> None:
        if isinstance(news, Progressed):
            self.latest = news
        if not self.outcome.done():
            self.on_news(news)

    @property
    def callers(self) -> frozenset[str]:
        return _PIPELINE if self.options.callers is None else self.options.callers()


def fair_order(waiting: Iterable[Entry], ranks: Mapping[str, int]) -> list[Entry]:
    """Order waiting jobs by turns of their callers, lowest rank first.

    A caller's rank is the turn after its last job, or of its arrival if that is later. So a
    newcomer passes at most the caller that was served last.
    """
    rounds: Counter[str] = Counter()
    firsts: dict[str, tuple[int, int]] = {}
    placed = []
    for entry in waiting:
        if callers := entry.callers:
            # A job with several callers counts for the one whose turn is next.
            caller = min(callers, key=lambda name: (ranks.get(name, 0), name))
            rank = max(ranks.get(caller, 0), entry.turn)
            placed.append((rounds[caller], firsts.setdefault(caller, (rank, entry.number)), entry))
            rounds[caller] += 1
    return [entry for *_, entry in sorted(placed, key=itemgetter(0, 1))]


@dataclass(eq=False)
class _Executor:
    name: str
    process: ComputeProcess
    waiting: list[Entry] = field(default_factory=list)
    present: Entry | None = None
    task: asyncio.Task[None] | None = None
    began: float = 0.0
    turn: int = 0
    ranks: dict[str, int] = field(default_factory=dict)

    def in_order(self) -> list[Entry]:
        return fair_order(self.waiting, self.ranks)

    def take(self, entry: Entry, now: float) -> None:
        callers = entry.callers
        self.waiting.remove(entry)
        self.present, self.began = entry, now
        self.turn += 1
        self.ranks |= dict.fromkeys(callers, self.turn + 1)
        needed = frozenset[str]().union(*(other.callers for other in self.waiting))
        # Ranks below a newcomer's have no effect any more.
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
        # Is called in the event loop with the jobs' messages about their scans.
        self.on_scan: Callable[[ScanNews], None] = lambda _: None
        self._numbers = count()
        self._reporting = self._stopped = False
        self.memory_limit_bytes = compute_memory_bytes(settings.limits, this_machine())
        open_context = partial(Context, settings)
        # The heavy one, then the light one if it is open.
        self._executors = [_Executor(HEAVY, self._process(open_context, "lipt-compute"))]

    def open_light(self, known: DataDescription) -> None:
        open_context = partial(LightContext, self._settings, known=known)
        process = self._process(open_context, "lipt-compute-light")
        self._executors.append(_Executor(LIGHT, process))

    async def run(
        self,
        job: Job[ResultT],
        on_progress: OnProgress = lambda _: None,
        options: JobOptions = _BY_ITSELF,
    ) -> ResultT:
        """Return the job's result (QueueFullError if too many wait); cancelling drops the job."""
        job = Order(job, options.fingerprint, dict(log_context()), current_traceparent())
        open_scan = ""

        def route(news: News) -> None:
            nonlocal open_scan
            if isinstance(news, ScanNews):
                open_scan = "" if isinstance(news, ScanClosed) else news.scan_id
                self.on_scan(news)
            elif isinstance(news, Progressed):
                on_progress(news)
            else:
                options.on_part(news)

        heavy, *light = self._executors
        if light and options.light:
            with suppress(HeavyJobError):
                return await self._wait(light[0], job, route, options)
        try:
            return await self._wait(heavy, job, route, options)
        finally:
            if open_scan:  # the job ended early: its ranges are not needed
                self.on_scan(ScanClosed(open_scan))

    def computations(self) -> tuple[Computation, ...]:
        now = self._clock()
        return tuple(
            Computation(
                queue=executor.name,
                job=name_of(entry.job),
                run=entry.options.run,
                num_callers=0 if entry.options.callers is None else len(entry.options.callers()),
                computing=entry is executor.present,
                seconds=now - (executor.began if entry is executor.present else entry.since),
                progress=entry.latest,
            )
            for executor in self._executors
            for entry in filter(None, (executor.present, *executor.in_order()))
        )

    def resident(self) -> Mapping[str, Resident]:
        """Memory of the running processes, by queue; callable from any thread."""
        pids = {executor.name: executor.process.pid for executor in self._executors}
        by_queue = {name: resident(pid) for name, pid in pids.items() if pid is not None}
        return {name: memory for name, memory in by_queue.items() if memory is not None}

    async def stop(self) -> None:
        self._stopped = True
        for executor in self._executors:
            for entry in executor.waiting:
                entry.outcome.cancel()
            if executor.task is not None:
                executor.task.cancel()
                await asyncio.wait({executor.task})
            executor.process.stop()

    def _process(self, open_context: OpenContext, name: str) -> ComputeProcess:
        return ComputeProcess(
            open_context, self._events, memory_bytes=self.memory_limit_bytes, name=name
        )

    async def _wait(
        self,
        executor: _Executor,
        job: Job[ResultT],
        on_news: Callable[[News], None],
        options: JobOptions,
    ) -> ResultT:
        if options.callers is not None:
            self._require_room(executor, options.callers())
        entry = Entry(
            next(self._numbers),
            executor.turn,
            self._clock(),
            job,
            options,
            on_news,
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
        of_trainers = [entry for entry in executor.waiting if entry.options.callers is not None]
        num_own = sum(bool(callers & entry.callers) for entry in of_trainers)
        if len(of_trainers) < limits.max_waiting and num_own < limits.max_waiting_per_caller:
            return
        # A job that has run for long will probably run about as long again.
        elapsed = 0.0 if executor.present is None else self._clock() - executor.began
        retry_after_seconds = min(max(elapsed, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS)
        number, most, whose = len(of_trainers), limits.max_waiting, ""
        if num_own >= limits.max_waiting_per_caller:
            number, most, whose = num_own, limits.max_waiting_per_caller, " of this caller"
        raise QueueFullError(
            f"{number} requests{whose} are waiting, the maximum is {most}. Ask again in "
            f"{retry_after_seconds:.0f} s.",
            retry_after_seconds=retry_after_seconds,
        )

    def _proceed(self, executor: _Executor) -> None:
        """Start the next job if none is running, and schedule a report of the queue positions."""
        if not self._reporting:
            self._reporting = True
            asyncio.get_running_loop().call_soon(self._report_places)
        order = () if executor.present is not None or self._stopped else executor.in_order()
        if order:
            entry, now = order[0], self._clock()
            executor.take(entry, now)
            self._meters.observe(QUEUE_WAIT, now - entry.since, executor.name)
            entry.report(Progressed("beginning"))
            executor.task = asyncio.create_task(self._compute(executor, entry))

    def _report_places(self) -> None:
        self._reporting = False
        for executor in self._executors:
            first = 0 if executor.present is None else 1
            for ahead, entry in enumerate(executor.in_order(), start=first):
                if entry.ahead != ahead:
                    entry.ahead = ahead
                    entry.report(Progressed("waiting for its turn", ahead=ahead))

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
        except BaseException as error:  # noqa: BLE001 - belongs to the waiting caller
            if not outcome.done():
                outcome.set_exception(error)
        finally:
            seconds = self._clock() - executor.began
            self._meters.observe(JOB, seconds, executor.name, name_of(entry.job))
            entry.options.took(seconds)
            executor.present = None
            self._proceed(executor)

    def _drop(self, executor: _Executor, entry: Entry) -> None:
        waits = entry in executor.waiting
        if waits:
            executor.waiting.remove(entry)
        elif entry is executor.present:
            executor.process.drop()
        else:
            return  # already ended
        self._events.record(
            EventKind.JOB_DROPPED,
            detail="waiting" if waits else "computing",
            job=name_of(entry.job),
            run=entry.options.run,
        )
        self._proceed(executor)
