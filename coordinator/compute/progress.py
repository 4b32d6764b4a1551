"""Progress: what a job reports before it has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progressed:
    """How far a job is; `ahead` counts the jobs before it, and is 0 once it has begun."""

    activity: str = ""
    done: int = 0
    total: int = 0
    ahead: int = 0


@dataclass(frozen=True)
class Aside(Progressed):
    """A message of a job that is no progress."""


@dataclass(frozen=True)
class Made(Aside):
    """A part of a job's result, ahead of the whole."""

    part: object = None


OnProgress = Callable[[Progressed], None]
