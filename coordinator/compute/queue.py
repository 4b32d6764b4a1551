"""Compute queue: jobs in, values out, each in a process or a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import TypeVar

from lipt.common.observability.logs import Events
from lipt.common.observability.metrics import Meters
from lipt.common.process.machine import this_machine
from lipt.coordinator.compute.cheap import CheapContext, KnownData
from lipt.coordinator.compute.child import OpenContext, with_origin
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.lane import Computation, Lane
from lipt.coordinator.compute.memory import Resident, resident
from lipt.coordinator.compute.messages import Asked, Cost, Job, TooDearError
from lipt.coordinator.compute.process import ComputeProcess
from lipt.coordinator.compute.progress import OnProgress, Progressed
from lipt.coordinator.compute.scan import ScanClosed, ScanNews
from lipt.coordinator.compute.thread import ComputeThread
from lipt.coordinator.settings import CoordinatorSettings, compute_memory_bytes

ResultT = TypeVar("ResultT")

# Compute queue: what takes long, apart from the event loop, in two lanes.
#
# The dear lane has the data set, models and the device. The cheap one has labels and what is kept
# on disk, and is there beside it, so that what is done in a moment never waits for what takes
# minutes. A job of the cheap lane that turns out to need more goes on to the dear one.

_BY_ITSELF = Asked()


class ComputeQueue:
    """The jobs of one coordinator; safe to use from one event loop."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        events: Events | None = None,
        meters: Meters | None = None,
        *,
        clock: Callable[[], float] = monotonic,
        in_this_process: bool = False,
    ) -> None:
        """Begin with the dear lane alone, and no process.

        Args:
            settings: of the coordinator; they travel to the processes.
            events: where jobs that are done again, and dropped ones, are counted.
            meters: where waiting and computing are measured.
            clock: seconds, for how long jobs wait and take.
            in_this_process: run jobs in a thread, all in one lane: for a coordinator that is
                embedded in a program, which a process of its own would have to import again.
        """
        self._settings = settings
        self._events = events or Events()
        self._meters = meters or Meters()
        self._clock = clock
        self._in_this_process = in_this_process
        self._tell_board: Callable[[ScanNews], None] = lambda _: None
        self.memory_limit_bytes = compute_memory_bytes(settings.limits, this_machine())
        self._dear = self._lane("dear", "lipt-compute", partial(Context, settings))
        self._cheap: Lane | None = None

    def share_scans(self, tell_board: Callable[[ScanNews], None]) -> None:
        """Have whoever gives ranges to workers told of them from here on, in the event loop."""
        self._tell_board = tell_board

    def open_cheap_lane(self, known: KnownData) -> None:
        """Compute cheap jobs beside dear ones from here on, in a process of their own."""
        if self._in_this_process:
            return
        open_context = partial(CheapContext, self._settings, known=known)
        self._cheap = self._lane("cheap", "lipt-compute-cheap", open_context)

    def warm(self) -> None:
        """Have the cheap lane's process there before the first cheap job."""
        if self._cheap is not None:
            self._cheap.process.start()

    async def run(
        self,
        job: Job[ResultT],
        on_progress: OnProgress = lambda _: None,
        asked: Asked = _BY_ITSELF,
    ) -> ResultT:
        """The job's result; who stops waiting for it drops it, also while it is computed.

        Args:
            job: a frozen value with a `run` method.
            on_progress: called in the event loop, also with the job's place in the queue.
            asked: for whom it is, and what it costs.

        Raises:
            QueueFullError: too many jobs of trainers wait already; one of a run is never refused.
            LiptError: what the job raised.
            OutOfMemoryError: it needs more memory than its process may take, or there is.
            ComputeError: its process ended without an answer, each time.
        """
        job = with_origin(job)
        if self._cheap is not None and asked.cost < Cost.DEAR:
            try:
                return await self._cheap.run(job, on_progress, asked)
            except TooDearError:
                asked = Asked(asked.run, asked.callers)
        hearing = _Hearing(self._tell_board, on_progress)
        try:
            return await self._dear.run(job, hearing, asked)
        finally:
            hearing.end()

    def waiting(self) -> Mapping[str, int]:
        """How many jobs wait, by lane."""
        cheap = self._cheap.num_waiting if self._cheap is not None else 0
        return {"cheap": cheap, "dear": self._dear.num_waiting}

    def computations(self) -> tuple[Computation, ...]:
        """What is computed and what waits, lane by lane."""
        cheap = () if self._cheap is None else self._cheap.computations("cheap")
        return (*self._dear.computations("dear"), *cheap)

    def oldest_seconds(self) -> Mapping[str, float]:
        """How long the oldest job that waits has waited, by lane."""
        cheap = self._cheap.oldest_seconds if self._cheap is not None else 0.0
        return {"cheap": cheap, "dear": self._dear.oldest_seconds}

    def resident(self) -> Mapping[str, Resident]:
        """The memory of the processes that are there now, by lane; read in any thread."""
        lanes = {"cheap": self._cheap, "dear": self._dear}
        pids = {name: lane.process.pid for name, lane in lanes.items() if lane is not None}
        found = {name: resident(pid) for name, pid in pids.items() if pid is not None}
        return {name: memory for name, memory in found.items() if memory is not None}

    async def stop(self) -> None:
        """End the processes, for good; whatever they were doing is lost."""
        if self._cheap is not None:
            await self._cheap.stop()
        await self._dear.stop()

    def _lane(self, lane: str, name: str, open_context: OpenContext) -> Lane:
        memory = self.memory_limit_bytes
        process = (
            ComputeThread(open_context, memory_bytes=memory, name=name)
            if self._in_this_process
            else ComputeProcess(open_context, self._events, memory_bytes=memory, name=name)
        )
        return Lane(
            process,
            self._settings.compute,
            self._events,
            clock=self._clock,
            name=lane,
            meters=self._meters,
        )


class _Hearing:
    """Hears what a job says: of its scan for the board, all else for whoever waits for it."""

    def __init__(self, tell_board: Callable[[ScanNews], None], on_progress: OnProgress) -> None:
        self._tell_board = tell_board
        self._on_progress = on_progress
        self._open = ""

    def __call__(self, progressed: Progressed) -> None:
        if not isinstance(progressed, ScanNews):
            self._on_progress(progressed)
            return
        self._open = "" if isinstance(progressed, ScanClosed) else progressed.scan_id
        self._tell_board(progressed)

    def end(self) -> None:
        """The job has ended, however that was: nobody needs its ranges."""
        if self._open:
            self(ScanClosed("", 0, 0, scan_id=self._open))
