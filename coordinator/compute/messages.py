"""Pipe messages between the service and its compute process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from lipt.common.errors import LiptError

if TYPE_CHECKING:
    from lipt.coordinator.compute.context import Context

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)


class Job(Protocol[ResultT_co]):
    """A frozen value that computes another one."""

    def run(self, context: Context) -> ResultT_co:
        """Compute it; progress goes through `context.report`."""
        ...


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


def name_of(job: object) -> str:
    """What a job is called in a sentence."""
    return type(job.job if isinstance(job, OnData) else job).__name__


@dataclass(frozen=True)
class Progressed:
    """How far the present job is."""

    activity: str
    done: int
    total: int


@dataclass(frozen=True)
class Finished:
    """The present job's result."""

    result: Any


@dataclass(frozen=True)
class Failed:
    """Why there is none; with a traceback when nobody foresaw it."""

    error: LiptError
    traceback: str = ""
