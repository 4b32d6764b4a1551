"""Compute queue: what takes long, apart from the event loop, in two lanes.

The dear lane has the data set, models and the device. The cheap one has labels and what is kept on
disk, and is there beside it, so that what is done in a moment never waits for what takes minutes.
A job of the cheap lane that turns out to need more goes on to the dear one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import TypeVar

from lipt.common.observability.events import Events
from lipt.common.process.machine import this_machine
from lipt.coordinator.compute.cheap import CheapContext, KnownData
from lipt.coordinator.compute.child import OpenContext
from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.lane import Computation, Lane
from lipt.coordinator.compute.messages import Asked, Cost, Job, TooDearError
from lipt.coordinator.compute.process import ComputeProcess
from lipt.coordinator.compute.progress import OnProgress
from lipt.coordinator.compute.thread import ComputeThread
from lipt.coordinator.settings import CoordinatorSettings, compute_memory_bytes

ResultT = TypeVar("ResultT")

_BY_ITSELF = Asked()


class ComputeQueue:
    """The jobs of one coordinator; safe to use from one event loop."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        events: Events | None = None,
        *,
        clock: Callable[[], float] = monotonic,
        in_this_process: bool = False,
    ) -> None:
        """Begin with the dear lane alone, and no process.

        Args:
            settings: of the coordinator; they travel to the processes.
            events: where jobs that are done again, and dropped ones, are counted.
            clock: seconds, for how long jobs wait and take.
            in_this_process: run jobs in a thread, all in one lane: for a coordinator that is
                embedded in a program, which a process of its own would have to import again.
        """
        self._settings = settings
        self._events = events or Events()
        self._clock = clock
        self._in_this_process = in_this_process
        self._memory_bytes = compute_memory_bytes(settings.limits, this_machine())
        self._dear = self._lane("lipt-compute", partial(Context, settings))
        self._cheap: Lane | None = None

    def open_cheap_lane(self, known: KnownData) -> None:
        """Compute cheap jobs beside dear ones from here on, in a process of their own."""
        if self._in_this_process:
            return
        open_context = partial(CheapContext, self._settings, known=known)
        self._cheap = self._lane("lipt-compute-cheap", open_context)

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
        if self._cheap is not None and asked.cost < Cost.DEAR:
            try:
                return await self._cheap.run(job, on_progress, asked)
            except TooDearError:
                asked = Asked(asked.run, asked.callers)
        return await self._dear.run(job, on_progress, asked)

    def waiting(self) -> Mapping[str, int]:
        """How many jobs wait, by lane."""
        cheap = self._cheap.num_waiting if self._cheap is not None else 0
        return {"cheap": cheap, "dear": self._dear.num_waiting}

    def computations(self) -> tuple[Computation, ...]:
        """What is computed and what waits, lane by lane."""
        cheap = () if self._cheap is None else self._cheap.computations("cheap")
        return (*self._dear.computations("dear"), *cheap)

    async def stop(self) -> None:
        """End the processes, for good; whatever they were doing is lost."""
        if self._cheap is not None:
            await self._cheap.stop()
        await self._dear.stop()

    def _lane(self, name: str, open_context: OpenContext) -> Lane:
        memory = self._memory_bytes
        process = (
            ComputeThread(open_context, memory_bytes=memory, name=name)
            if self._in_this_process
            else ComputeProcess(open_context, self._events, memory_bytes=memory, name=name)
        )
        return Lane(process, self._settings.compute, self._events, clock=self._clock)
