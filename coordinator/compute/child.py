"""Compute process, from inside: take a job, run it, send its result."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar

from lipt.common.errors import ComputeError, LiptError, OutOfMemoryError
from lipt.common.observability.logs import configure_logging, log_context, logging_about
from lipt.common.observability.tracing import attached, current_traceparent, exporting, span
from lipt.common.process.memory import go_first_without_memory, is_out_of_memory, limit_memory
from lipt.common.text import format_bytes
from lipt.coordinator.compute.children import IGNORED_SIGNALS
from lipt.coordinator.compute.context import Context, Report
from lipt.coordinator.compute.messages import (
    DroppedError,
    Failed,
    Finished,
    Job,
    Stop,
    TooDearError,
    Unfinished,
    name_of,
)
from lipt.coordinator.compute.progress import Progressed

ResultT = TypeVar("ResultT")

# Makes what jobs are given; travels to the child by pickle, before the first job.
OpenContext = Callable[[Report], Context]


def serve(pipe: Connection, memory_bytes: int) -> None:
    """Run jobs until the parent closes the pipe or is gone; the context's opener comes first."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # Blocked since before the fork, which a child of this process must not inherit.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    go_first_without_memory()

    def report(progressed: Progressed) -> None:
        if pipe.poll():  # only `Stop` is sent while a job runs
            pipe.recv()
            raise DroppedError
        pipe.send(progressed)

    with suppress(EOFError):
        open_context: OpenContext = pipe.recv()
        context = open_context(report)
        configure_logging(context.settings.log_level, context.settings.log_format)
        # A missing device is a job's error.
        with suppress(LiptError):
            # The driver of a CUDA device maps far more than is used.
            if context.device.type == "cpu":
                limit_memory(memory_bytes)
        with exporting("lipt-compute"):
            while True:
                message = pipe.recv()
                # It came too late for its job.
                if not isinstance(message, Stop):
                    pipe.send(carry_out(message, context, memory_bytes))


def carry_out(
    job: Job[object], context: Context, memory_bytes: int
) -> Finished | Failed | Unfinished:
    """Run a job and answer in any case; `memory_bytes` is named where it ran out of memory."""
    try:
        return Finished(job.run(context))
    except (DroppedError, TooDearError) as ended:
        return Unfinished(type(ended)())
    except Exception as error:  # noqa: BLE001 - the outermost frame of a job
        if is_out_of_memory(error):
            why = f"{type(error).__name__}: {error}".strip(": ")
            refusal = out_of_memory(name_of(job), why, limit_bytes=memory_bytes)
            return Failed(refusal, traceback.format_exc())
        if isinstance(error, LiptError):
            return Failed(error)
        why = f"{name_of(job)} failed: {type(error).__name__}: {error}"
        return Failed(ComputeError(why), traceback.format_exc())


def out_of_memory(job: str, why: str, *, limit_bytes: int) -> OutOfMemoryError:
    """The error for a job without enough memory; `why` is how it showed, as a clause."""
    return OutOfMemoryError(
        f"{job} ran out of memory: {why}. The compute process may take "
        f"{format_bytes(limit_bytes)} (limits.compute_memory): choose a smaller model, "
        "validation.fraction or strategy, or give it more with --compute-memory."
    )


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@dataclass(frozen=True)
class WithOrigin(Generic[ResultT]):
    """A job with the log context and the trace (empty for none) that it was asked for in."""

    job: Job[ResultT]
    log_context: Mapping[str, str]
    traceparent: str

    def run(self, context: Context) -> ResultT:
        """Compute it, as a span of its own."""
        with (
            logging_about(**self.log_context),
            attached(self.traceparent),
            span(name_of(self.job)),
        ):
            return self.job.run(context)


def with_origin(job: Job[ResultT]) -> WithOrigin[ResultT]:
    """The job as asked for in the present log context and trace."""
    return WithOrigin(job, dict(log_context()), current_traceparent())
