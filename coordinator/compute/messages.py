"""Jobs, their callers, and the messages that a compute process sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from lipt.common.observability.logs import logging_about
from lipt.common.observability.tracing import attached, span

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

# The largest file that a light job reads.
MAX_LIGHT_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class Progressed:
    """A job's progress; `ahead` counts the jobs before it, and is 0 once it runs."""

    activity: str = ""
    done: int = 0
    total: int = 0
    ahead: int = 0


@dataclass(frozen=True)
class ScanNews:
    """A job's message about its scan, for the event loop."""

    scan_id: str


@dataclass(frozen=True)
class ScanClosed(ScanNews):
    """No more ranges are wanted."""


@dataclass(frozen=True)
class JobEnded:
    """The current job's result, or its error, with a traceback if it was unexpected."""

    result: Any = None
    error: BaseException | None = None
    traceback: str = ""


# A job's message before it ends: `Progressed`, `ScanNews`, or an early part of the result.
News: TypeAlias = object
OnProgress = Callable[[Progressed], None]


class DroppedError(BaseException):
    """The job was dropped; a BaseException, so that jobs do not catch it as their own error."""


class HeavyJobError(BaseException):
    """The job needs more than the light process has."""


class Job(Protocol[ResultT_co]):
    """A frozen value with a computation in a `Context`, which imports this module."""

    def run(self, context: Any) -> ResultT_co: ...


@dataclass(frozen=True)
class JobOptions:
    """Options of a job: its callers, queue, data and callbacks.

    `callers` wait for it (None: a run's own job). Labels and stored signals may be enough for a
    `light` one. It fails with OtherDataError unless the data keeps its `fingerprint` (empty: any).
    `on_part` receives early parts of the result, `took` its seconds without the queue.
    """

    run: str = ""
    callers: Callable[[], frozenset[str]] | None = None
    light: bool = False
    fingerprint: str = ""
    on_part: Callable[[object], None] = field(default=lambda _: None, compare=False)
    took: Callable[[float], None] = field(default=lambda _: None, compare=False)


@dataclass(frozen=True)
class Order(Generic[ResultT]):
    """A job on its way to a process, with its data, log context and trace."""

    job: Job[ResultT]
    fingerprint: str = ""
    log_context: Mapping[str, str] = field(default_factory=dict)
    traceparent: str = ""

    def run(self, context: Any) -> ResultT:
        with logging_about(**self.log_context), attached(self.traceparent), span(name_of(self.job)):
            if not self.fingerprint:
                return self.job.run(context)
            context.require_data(self.fingerprint)
            try:
                return self.job.run(context)
            finally:
                # Also where the job has failed: other data is the better explanation.
                context.require_data(self.fingerprint)


def name_of(job: object) -> str:
    return type(getattr(job, "job", job)).__name__
