"""Pipe messages between the service and its compute process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lipt.common.errors import LiptError

if TYPE_CHECKING:
    from lipt.coordinator.compute.context import Context

ResultT_co = TypeVar("ResultT_co", covariant=True)


class Job(Protocol[ResultT_co]):
    """A frozen value that computes another one."""

    def run(self, context: Context) -> ResultT_co:
        """Compute it; progress goes through `context.report`."""
        ...


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
