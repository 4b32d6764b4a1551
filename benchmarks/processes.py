"""Processes of the benchmarks: children that never outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Self

from lipt.common.errors import ProcessEndedError, UnreachableError

_STOP_SECONDS = 10.0
_TAIL_LINES = 15
# Reading cifar10-jpeg takes minutes where other benches run beside this one.
_START_SECONDS = 1800.0


@dataclass(frozen=True)
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Children:
    """Python processes with a log each; leaving the block ends them all.

    Each has a session of its own, so that Ctrl-C reaches this process only, which then ends
    them in order: by SIGTERM, and `stop_seconds` later by SIGKILL.
    """

    def __init__(
        self,
        log_directory: Path,
        environment: Mapping[str, str],
        *,
        stop_seconds: float = _STOP_SECONDS,
    ) -> None:
        self._log_directory = log_directory
        self._environment = environment
        self._stop_seconds = stop_seconds
        self._children: list[_Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # An impatient second Ctrl-C must not leave orphans.
        with _handling(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self.stop()

    def start(self, name: str, arguments: Sequence[str]) -> int:
        """Start `python ARGUMENTS`, its output in NAME.log."""
        log = self._log_directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(self._environment),
                start_new_session=True,
            )
        self._children.append(_Child(name, process, log))
        return process.pid

    def check(self) -> None:
        """See that all are alive."""
        for child in self._children:
            status = child.process.poll()
            if status is not None:
                end = f"has ended with status {status}"
                if status < 0:
                    end = f"was killed by {signal.Signals(-status).name}"
                lines = child.log.read_text(encoding="utf-8", errors="replace").splitlines()
                tail = "\n".join(f"    {line}" for line in lines[-_TAIL_LINES:] or ["(nothing)"])
                raise ProcessEndedError(f"{child.name} {end}; {child.log} ends with:\n{tail}")

    def stop(self) -> None:
        """End all, with the whole session of those that ignore SIGTERM."""
        for child in reversed(self._children):
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + self._stop_seconds
        for child in self._children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                # Not reaped yet, so its id still names its own session.
                os.killpg(child.process.pid, signal.SIGKILL)
                child.process.wait()
        self._children.clear()


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Lets SIGTERM and a closed terminal end this process as Ctrl-C does: with its clean-up."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _handling(end, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _handling(handler: signal._HANDLER, *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only it is interrupted
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def wait_for_address(
    children: Children, file: Path, *, log: Path, seconds: float = _START_SECONDS
) -> str:
    """Where the coordinator listens, as soon as it does.

    Args:
        children: the coordinator is one of them.
        file: where it writes its address.
        log: its own.
        seconds: how long it may take.

    Raises:
        ProcessEndedError: a child has ended.
        UnreachableError: the coordinator does not listen by then.
    """
    started = time.monotonic()
    while not (file.exists() and file.read_text().strip()):
        children.check()
        if time.monotonic() - started > seconds:
            raise UnreachableError(
                f"the coordinator does not listen after {seconds:.0f} s. See {log} for what "
                "it does, and whether the machine is busy."
            )
        time.sleep(0.2)
    return file.read_text().strip()
