"""Jobs, who waits for them, and the messages that a compute process sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, auto
from time import monotonic
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from lipt.common.observability.logs import logging_about
from lipt.common.observability.tracing import attached, span

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

# The largest file that a light job reads.
MAX_CHEAP_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class Progressed:
    """How far a job is; `ahead` counts the jobs before it, and is 0 once it has begun."""

    activity: str = ""
    done: int = 0
    total: int = 0
    ahead: int = 0


@dataclass(frozen=True)
class Made:
    """A part of a job's result, ahead of the whole."""

    part: object


@dataclass(frozen=True)
class ScanNews:
    """A message of a job about its scan, for the event loop."""

    scan_id: str


@dataclass(frozen=True)
class ScanClosed(ScanNews):
    """No more ranges are wanted."""


@dataclass(frozen=True)
class Finished:
    """The present job's result."""

    result: Any


@dataclass(frozen=True)
class Failed:
    """The present job's error, with a traceback where it was unforeseen."""

    error: BaseException
    traceback: str = ""


# What a job sends before it has ended.
News: TypeAlias = Progressed | Made | ScanNews
OnProgress = Callable[[Progressed], None]


class DroppedError(BaseException):
    """The job was given up; no job is to take it for a failure of its own."""


class TooDearError(BaseException):
    """The job needs more than a light one may have."""


class Job(Protocol[ResultT_co]):
    """A frozen value that computes another one."""

    # Any: `Context` imports this module.
    def run(self, context: Any) -> ResultT_co:
        """Compute it in a `Context`; progress goes through `context.report`."""
        ...


class Cost(IntEnum):
    """What a job needs; ascending."""

    LABELS = auto()
    # One look at every example's stored signals; the job is heavy if they are not stored.
    SIGNALS = auto()
    # Images, a model, or more than a look at every example.
    DEAR = auto()


@dataclass(frozen=True)
class Asked:
    """A job's run (empty for the data alone), its present callers, its cost, and who takes parts.

    `callers` is None where nobody but the run waits.
    """

    run: str = ""
    callers: Callable[[], frozenset[str]] | None = None
    cost: Cost = Cost.DEAR
    on_part: Callable[[object], None] = field(default=lambda _: None, compare=False)


@dataclass(frozen=True)
class OnData(Generic[ResultT]):
    """A job that is refused (OtherDataError) unless the data has this fingerprint all along."""

    fingerprint: str
    job: Job[ResultT]

    def run(self, context: Any) -> ResultT:
        """Compute it, with a look at the data before and after."""
        context.require_data(self.fingerprint)
        try:
            return self.job.run(context)
        finally:
            # Also where the job has failed: other data is the better explanation.
            context.require_data(self.fingerprint)


@dataclass(frozen=True)
class Took(Generic[ResultT]):
    """A job's result, and its seconds without its turn in the queue."""

    made: ResultT
    seconds: float


@dataclass(frozen=True)
class Timed(Generic[ResultT]):
    """A job whose own duration is wanted."""

    job: Job[ResultT]

    def run(self, context: Any) -> Took[ResultT]:
        """Compute it by the clock."""
        started = monotonic()
        return Took(self.job.run(context), monotonic() - started)


@dataclass(frozen=True)
class WithOrigin(Generic[ResultT]):
    """A job with the log context and the trace (empty for none) of its request."""

    job: Job[ResultT]
    log_context: Mapping[str, str]
    traceparent: str

    def run(self, context: Any) -> ResultT:
        """Compute it, as a span of its own."""
        with logging_about(**self.log_context), attached(self.traceparent), span(name_of(self.job)):
            return self.job.run(context)


def name_of(job: object) -> str:
    """A job's name, without its wrappers."""
    inner = getattr(job, "job", None)
    return type(job).__name__ if inner is None else name_of(inner)
