"""Worker pool: as many `lipt-worker` processes as open learners, here or on Ray.

Workers depend only on the coordinator: a killed pool, or the loss of half its machines, costs only
time. The kernel sends a child SIGTERM when its starter's thread ends, so that it releases its
learner. Imports stay light: this module runs before each worker.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

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
                with suppress(OSError):  # a closed terminal must not stop the child's output
                    self._print_line(line.rstrip("\n"))


def become() -> None:
    """Become the program, in a new process with the arguments PARENT MODULE ...."""
    _, parent, module, *arguments = sys.argv
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before it could be followed
        return
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - no shell
