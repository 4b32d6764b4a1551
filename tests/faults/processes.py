"""What runs beneath a coordinator."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.cluster import LoggedProcess


@dataclass(frozen=True)
class Child:
    """A process that another has started."""

    pid: int

    def kill(self) -> None:
        """End it at once; harmless when it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def computing(coordinator: LoggedProcess) -> list[Child]:
    """The process that runs a coordinator's jobs, where there is one now."""
    pid = coordinator.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [Child(int(child)) for child in children if b"spawn_main" in _command(child)]


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""
