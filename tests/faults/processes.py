"""What runs beneath a coordinator."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.end_to_end.cluster import LoggedProcess


def computing(coordinator: LoggedProcess) -> list[int]:
    """The process that runs a coordinator's jobs, where there is one now."""
    return [child for child in coordinator.children() if b"spawn_main" in _command(child)]


def kill(pid: int) -> None:
    """End a process at once; harmless when it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""
