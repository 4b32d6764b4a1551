"""Worker pool: as many `lipt-worker` processes as open learners, here or on Ray.

Workers depend only on the coordinator: a killed pool, or the loss of half its machines, costs only
time. This module runs workers on this machine. The kernel sends a child SIGTERM when its
starter's thread ends, so that it releases its learner. Imports stay light: the module runs before
each worker.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

# Time for a worker to release its learner at a slow coordinator.
STOP_SECONDS = 15.0
_TAIL_LINES = 15
_SET_PARENT_DEATH_SIGNAL = 1
_BOUND = "from lipt.worker.pool import become; become()"


class Child(subprocess.Popen[str]):
    """`python -m MODULE ARGUMENTS`; another thread passes its output lines to `print_line`."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        print_line: Callable[[str], object],
    ) -> None:
        self._print_line = print_line
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        # Ctrl-C reaches only the starter, which ends the child in order.
        super().__init__(
            [sys.executable, "-c", _BOUND, str(os.getpid()), module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name="lipt-child", daemon=True)
        self._reader.start()

    def end(self, seconds: float) -> int:
        try:
            return self.wait(seconds)
        except subprocess.TimeoutExpired:
            # Not reaped yet, so the id is still its session's.
            os.killpg(self.pid, signal.SIGKILL)
            return self.wait()

    def tail(self) -> str:
        self._reader.join(1.0)
        return "\n".join(self._lines)

    def _read(self) -> None:
        assert self.stdout is not None  # noqa: S101 - it is a pipe
        with self.stdout as output:
            for line in output:
                self._lines.append(line.rstrip("\n"))
                self._print_line(line.rstrip("\n"))


def become() -> None:
    """Become the program, in a new process with the arguments PARENT MODULE ...."""
    _, parent, module, *arguments = sys.argv
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before it could be followed
        return
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - no shell


@dataclass(frozen=True)
class Ended:
    """A worker that has ended; `status` is negative for a signal, None if unknown."""

    number: int
    status: int | None
    tail: str = ""


class LocalEngine:
    """Runs workers as children of this process; two with 0.5 `gpus_per_worker` share a GPU."""

    def __init__(self, gpus_per_worker: float, print_line: Callable[[str], object]) -> None:
        self._gpus = gpus_per_worker
        self._print_line = print_line
        self._children: dict[int, Child] = {}

    def start(self, number: int, arguments: Sequence[str]) -> None:
        device = f"cuda:{int(number * min(self._gpus, 1.0))}" if self._gpus else "cpu"
        # First, so that a device in the user's arguments overrides it.
        arguments = ["--device", device, *arguments]
        self._children[number] = Child(
            "lipt.worker",
            arguments,
            os.environ,
            lambda line: self._print_line(f"worker {number} | {line}"),
        )

    def ended(self) -> list[Ended]:
        found = [
            Ended(number, status, child.tail())
            for number, child in self._children.items()
            if (status := child.poll()) is not None
        ]
        for ended in found:
            del self._children[ended.number]
        return found

    def stop(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._children[number].terminate()

    def close(self) -> None:
        self.stop(self._children)
        deadline = time.monotonic() + STOP_SECONDS
        for child in self._children.values():
            child.end(max(0.0, deadline - time.monotonic()))
        self._children.clear()
