"""Compute messages: what a job is and for whom, and what passes between it and those who wait."""

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

# The largest file that a cheap job reads; what is larger is not read in a moment.
MAX_CHEAP_BYTES = 256 * 1024**2


class Job(Protocol[ResultT_co]):
    """A frozen value that computes another one."""

    def run(self, context: Context) -> ResultT_co:
        """Compute it; progress goes through `context.report`."""
        ...


class Cost(IntEnum):
    """What a job needs; ascending."""

    # Labels, and nothing else.
    LABELS = auto()
    # One look at every example's signals, which are kept, or the job is dear after all.
    SIGNALS = auto()
    # Images, a model, or more than a look at every example.
    DEAR = auto()


@dataclass(frozen=True)
class Asked:
    """For whom a job is, and what it costs: its place in the queue depends on nothing else.

    run: the id of the run that it is of; empty for the data alone.
    callers: who waits for it, as they come and go; None where nobody but the run does.
    """

    run: str = ""
    callers: Callable[[], frozenset[str]] | None = None
    cost: Cost = Cost.DEAR


@dataclass(frozen=True)
class OnData(Generic[ResultT]):
    """A job on certain data and no other: what it has made is not believed if that was not there.

    fingerprint: of the data.
    """

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
    """What a job has made, and how many seconds it took, without its turn in the queue."""

    made: ResultT
    seconds: float


@dataclass(frozen=True)
class Timed(Generic[ResultT]):
    """A job whose price is wanted: what others had computed before it is not its own."""

    job: Job[ResultT]

    def run(self, context: Context) -> Took[ResultT]:
        """Compute it, with a look at the clock before and after."""
        started = monotonic()
        return Took(self.job.run(context), monotonic() - started)


def name_of(job: object) -> str:
    """What a job is called in a sentence; not what is put around it."""
    inner = getattr(job, "job", None)
    return type(job).__name__ if inner is None else name_of(inner)


@dataclass(frozen=True)
class Finished:
    """The present job's result."""

    result: Any


@dataclass(frozen=True)
class Failed:
    """Why there is none; with a traceback when nobody foresaw it."""

    error: LiptError
    traceback: str = ""


@dataclass(frozen=True)
class Stop:
    """Asks for the present job to be given up; of no meaning where there is none."""


@dataclass(frozen=True)
class Unfinished:
    """There is no result, for a reason that is nobody's fault."""

    why: DroppedError | TooDearError


class DroppedError(BaseException):
    """The job was given up; no job is to take it for a failure of its own."""


class TooDearError(BaseException):
    """The job needs more than a cheap one may have."""


def outcome_of(message: Finished | Failed | Unfinished, job: Job[ResultT]) -> ResultT:
    """A job's result; what it ended with is raised, and logged where nobody foresaw it."""
    if isinstance(message, Finished):
        result: ResultT = message.result
        return result
    if isinstance(message, Unfinished):
        raise message.why
    if message.traceback:
        for line in message.traceback.splitlines():
            logger.error("%s: %s", name_of(job), line)
    raise message.error
