"""Children: `lipt-worker` and its like as processes that do not outlive who started them.

The kernel sends a child SIGTERM when the thread that started it has ended, however that came about.
So a worker whose starter was killed gives its learner back and leaves. Imports nothing heavy, for
it runs on every node before the worker does.
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

# A worker that is told to end gives its learner back, also to a coordinator that is slow or gone.
STOP_SECONDS = 15.0
# As many lines of what it said last are kept.
_TAIL_LINES = 15
_SET_PARENT_DEATH_SIGNAL = 1
# What is executed in the new process, before the program proper.
_BOUND = "from lipt.worker.pool.children import become; become()"


class Child:
    """`python -m MODULE ARGUMENTS`, whose lines are passed on.

    Args:
        module: what is run.
        arguments: of its command line; no secret is among them.
        environment: all of it.
        say: takes every line that it prints, in another thread.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        say: Callable[[str], object],
    ) -> None:
        self._say = say
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        # A session of its own: Ctrl-C reaches who started it, who then ends it in order.
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, no shell
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

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Its exit status as soon as it has one, or None after so long."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Ask it to end; harmless where it has."""
        self._process.terminate()

    def end(self, seconds: float) -> int:
        """Wait for it to end, and kill its session after so long; the exit status."""
        if self.wait(seconds) is None:
            # Not reaped yet, so its id still names its session and nobody else's.
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def tail(self) -> str:
        """What it said last."""
        self._reader.join(1.0)
        return "\n".join(self._lines)

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        with self._process.stdout as output:
            for line in output:
                self._lines.append(line.rstrip("\n"))
                self._say(line.rstrip("\n"))


def become() -> None:
    """In the new process: end with the parent from now on, and become the program.

    The command line is PARENT MODULE ARGUMENTS.
    """
    _, parent, module, *arguments = sys.argv
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before it could be followed
        return
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - no shell
