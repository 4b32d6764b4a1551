"""Progress: what a job says before it has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progressed:
    """How far a job is.

    ahead: how many jobs are to be done before it; 0 from when it is computed.
    """

    activity: str
    done: int
    total: int
    ahead: int = 0


@dataclass(frozen=True)
class Aside(Progressed):
    """What a job says that is not of its progress."""


@dataclass(frozen=True)
class Made(Aside):
    """A part of a job's result, ahead of the whole.

    part: of a kind that whoever asked for the job knows.
    """

    part: object = None


OnProgress = Callable[[Progressed], None]
