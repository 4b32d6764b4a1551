"""Engine: what places and runs a pool's workers; the pool itself only counts them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Ended:
    """A worker that is no more.

    number: as it was started with.
    status: the exit status of its process, negative for a signal; None where that is unknown.
    tail: what it said last.
    """

    number: int
    status: int | None
    tail: str = ""


class Engine(Protocol):
    """Where workers run. Numbers are the pool's; one is given again once its worker has ended."""

    def start(self, number: int, arguments: Sequence[str]) -> None:
        """Have a worker started with these arguments of `lipt-worker`, as soon as there is room.

        An engine may start it again, here or elsewhere, when the machine that it ran on is gone.
        """
        ...

    def ended(self) -> Sequence[Ended]:
        """Those that have ended since this was asked last."""
        ...

    def stop(self, numbers: Collection[int]) -> None:
        """Let workers give back what they have and end; `ended` tells of them later."""
        ...

    def close(self) -> None:
        """Stop all, and return when they have ended or had their time."""
        ...
