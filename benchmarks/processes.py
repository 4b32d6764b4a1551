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
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Service:
    """A coordinator and workers: the address, the processes, and their ids."""

    address: str
    children: Children
    process_ids: list[int]


@contextmanager
def serving(
    folder: Path,
    data: str,
    model: str,
    *,
    num_workers: int = 0,
    flags: Sequence[str] = (),
    device: str = "cpu",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Service]:
    """Start a coordinator with state, caches and logs in a folder, and workers; end them after."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("LIPT_")}
    address_file = folder / "address"
    address_file.unlink(missing_ok=True)
    with Children(folder, {**clean, **(environment or {})}) as children:
        served = ["--data", data, "--model", model, "--state-dir", str(folder / "state")]
        where = ["--listen", "127.0.0.1:0", "--address-file", str(address_file)]
        common = ["--device", device]
        coordinator = ["-m", "lipt.coordinator", *common, *served, *where, *flags]
        service = Service("", children, [children.start("coordinator", coordinator)])
        service = replace(service, address=_wait_for_address(children, address_file))
        for number in range(num_workers):
            own = ["--cache-dir", str(folder / f"cache-{number}"), "--name", f"worker-{number}"]
            worker = ["-m", "lipt.worker", *common, "--coordinator", service.address, *own]
            service.process_ids.append(children.start(f"worker-{number}", worker))
        yield service


def _wait_for_address(children: Children, file: Path) -> str:
    started = time.monotonic()
    while not (file.exists() and file.read_text().strip()):
        children.check()
        if time.monotonic() - started > _START_SECONDS:
            raise UnreachableError(
                f"the coordinator does not listen after {_START_SECONDS:.0f} s. See "
                f"{file.with_name('coordinator.log')}, and whether the machine is busy."
            )
        time.sleep(0.05)
    return file.read_text().strip()
