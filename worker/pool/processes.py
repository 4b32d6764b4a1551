"""Processes: workers on this machine; `lipt-worker-pool` without an engine of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from lipt.worker.pool.children import STOP_SECONDS, Child
from lipt.worker.pool.engine import Ended

# Of 0 for all of it: the number of a worker's GPU, where two share one.
_WHOLE = 1.0


class LocalEngine:
    """Runs workers as children of this process.

    Args:
        gpus_per_worker: 0 for the CPU; 1 gives worker n the device `cuda:n`, 0.5 has two share one.
        say: takes each line that a worker prints, with its number in front.
    """

    def __init__(self, *, gpus_per_worker: float, say: Callable[[str], object]) -> None:
        self._gpus = gpus_per_worker
        self._say = say
        self._children: dict[int, Child] = {}

    def start(self, number: int, arguments: Sequence[str]) -> None:
        """Start a worker now."""
        device = f"cuda:{int(number * min(self._gpus, _WHOLE))}" if self._gpus else "cpu"
        say = partial(self._say_of, number)
        # In front, so that a device that the user names comes later and wins.
        arguments = ["--device", device, *arguments]
        self._children[number] = Child("lipt.worker", arguments, os.environ, say)

    def ended(self) -> list[Ended]:
        """Those that have ended since this was asked last."""
        found = [
            Ended(number, status, child.tail())
            for number, child in self._children.items()
            if (status := child.poll()) is not None
        ]
        for ended in found:
            del self._children[ended.number]
        return found

    def stop(self, numbers: Collection[int]) -> None:
        """Ask workers to end."""
        for number in numbers:
            self._children[number].terminate()

    def close(self) -> None:
        """End all, with SIGKILL those that linger."""
        self.stop(self._children)
        deadline = time.monotonic() + STOP_SECONDS
        for child in self._children.values():
            child.end(max(0.0, deadline - time.monotonic()))
        self._children.clear()

    def _say_of(self, number: int, line: str) -> None:
        self._say(f"worker {number} | {line}")
