"""Compute messages: jobs, their cost and their callers, and what passes between processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, auto
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from lipt.common.errors import LiptError

if TYPE_CHECKING:
    from lipt.coordinator.compute.context import Context

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

# The largest file that a light job reads.
MAX_CHEAP_BYTES = 256 * 1024**2


class Job(Protocol[ResultT_co]):
    """A frozen value that computes another one."""

    def run(self, context: Context) -> ResultT_co:
        """Compute it; progress goes through `context.report`."""
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
    """For whom a job is, and what it costs.

    Attributes:
        run: the id of its run; empty for the data alone.
        callers: who waits for it, as they come and go; None where nobody but the run does.
    """

    run: str = ""
    callers: Callable[[], frozenset[str]] | None = None
    cost: Cost = Cost.DEAR


@dataclass(frozen=True)
class OnData(Generic[ResultT]):
    """A job that is refused unless the data's fingerprint is this one before and after."""

    fingerprint: str
    job: Job[ResultT]

    def run(self, context: Context) -> ResultT:
        """Compute it, with a look at the data before and after.

        Raises:
            OtherDataError: there is other data, or was at the end.
        """
        context.require_data(self.fingerprint)
        try:
            return self.job.run(context)
        finally:
            # Also where the job has failed: other data is the better explanation.
            context.require_data(self.fingerprint)


@dataclass(frozen=True)
class Took(Generic[ResultT]):
    """A job's result, and how many seconds it took without its turn in the queue."""

    made: ResultT
    seconds: float


@dataclass(frozen=True)
class Timed(Generic[ResultT]):
    """A job whose own duration is wanted."""

    job: Job[ResultT]

    def run(self, context: Context) -> Took[ResultT]:
        """Compute it, with a look at the clock before and after."""
        started = monotonic()
        return Took(self.job.run(context), monotonic() - started)


def name_of(job: object) -> str:
    """A job's name, without its wrappers."""
    inner = getattr(job, "job", None)
    return type(job).__name__ if inner is None else name_of(inner)


class DroppedError(BaseException):
    """The job was given up; no job is to take it for a failure of its own."""


class TooDearError(BaseException):
    """The job needs more than a light one may have."""


@dataclass(frozen=True)
class Finished:
    """The present job's result."""

    result: Any


@dataclass(frozen=True)
class Failed:
    """The present job's error, with a traceback where it was unforeseen."""

    error: LiptError
    traceback: str = ""


@dataclass(frozen=True)
class Unfinished:
    """The present job ended without result or fault."""

    why: DroppedError | TooDearError


@dataclass(frozen=True)
class Stop:
    """Asks for the present job to be given up."""


def outcome_of(message: Finished | Failed | Unfinished, job: Job[ResultT]) -> ResultT:
    """A job's result; its error is raised, and logged where it was unforeseen."""
    if isinstance(message, Finished):
        result: ResultT = message.result
        return result
    if isinstance(message, Unfinished):
        raise message.why
    for line in message.traceback.splitlines():
        logger.error("%s: %s", name_of(job), line)
    raise message.error
