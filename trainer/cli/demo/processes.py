"""`lipt demo`: a coordinator and workers as children, which never outlive their parent."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Self

from typer import Option

from lipt.common.terminal import say
from lipt.trainer.cli.demo import DATA, MODEL
from lipt.trainer.cli.display.output import SILENCE_SECONDS, Say, run_talking

if TYPE_CHECKING:
    from lipt.trainer.cli.demo.experiment import DemoResult
    from lipt.trainer.client.client import Client
    from lipt.trainer.views import RunView

    Conduct = Callable[[Client, Callable[[RunView], RunView], Path, Say], DemoResult]

_STOP_SECONDS = 10.0
_TAIL_LINES = 15


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
            process = subprocess.Popen(  # noqa: S603 - this interpreter, no shell
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
        from lipt.common.errors import ProcessEndedError

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
                # Not reaped yet, so its id still names its session and nobody else's.
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


_POLL_SECONDS = 0.1
_START_SECONDS = 120.0
# The data with its right labels, and what accuracy is measured on.
_RIGHT, _TEST = "digits-train", "digits-test"
# The children are on this machine: when they are away, they are gone.
_RECONNECT_SECONDS = 5.0


def demonstrate(
    *,
    directory: Path = Option("lipt-demo", "--dir", help="Where results and logs are written."),
    workers: int = Option(3, min=1, max=64, help="How many workers to start."),
) -> None:
    """Start a coordinator and workers here, diagnose the digits, and train on subsets of them."""
    # Before torch is loaded, here and in the children. Images of 8x8 gain nothing from a
    # second thread, which would only take the core that another process needs.
    os.environ["OMP_NUM_THREADS"] = "1"
    started = time.monotonic()
    logs = directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    # LIPT_* settings are for other coordinators and workers.
    environment = {name: value for name, value in os.environ.items() if name[:5] != "LIPT_"}
    with (
        ending_in_order(),
        tempfile.TemporaryDirectory(prefix="lipt-demo-", ignore_cleanup_errors=True) as folder,
        Children(logs, environment) as children,
    ):
        lines = _run(children, directory, Path(folder), workers)
        say("stopping the processes")
    for line in ("", *lines, f"done in {time.monotonic() - started:.1f} s"):
        say(line)


def _run(children: Children, directory: Path, scratch: Path, num_workers: int) -> list[str]:
    from lipt.common.errors import RunFailedError, UnreachableError
    from lipt.common.states import RunState
    from lipt.trainer.cli.display.runs import follow
    from lipt.trainer.client.client import Client

    address_file = scratch / "address"
    state = ("--listen", "127.0.0.1:0", "--state-dir", str(scratch / "state"))
    served = ("--data", DATA, "--model", MODEL, "--address-file", str(address_file))
    _start(children, "coordinator", "lipt.coordinator", *state, *served)
    conduct = run_talking(_prepare, say, activity=f"reading {DATA} and {_TEST}")
    _wait_until(address_file.exists, "the coordinator to listen", children)
    address = address_file.read_text().strip()
    for number in range(1, num_workers + 1):
        name = f"worker-{number}"
        own = ("--cache-dir", str(scratch / name), "--name", name)
        _start(children, name, "lipt.worker", "--coordinator", address, *own)
    with Client(address, reconnect_seconds=_RECONNECT_SECONDS) as client:

        def finish(run: RunView) -> RunView:
            final = follow(client.watch(run.run_id), check=children.check) or run
            if final.state is not RunState.READY:
                raise RunFailedError(f"the run is {final.outcome}.")
            return final

        def joined() -> bool:
            return len(client.info().workers) >= num_workers

        try:
            # Else the first worker would do all the work alone.
            _wait_until(joined, f"{num_workers} workers to join", children)
            return conduct(client, finish, directory, say).lines
        except UnreachableError:
            children.check()  # a dead process is the better explanation
            raise


def _start(children: Children, name: str, module: str, *flags: str) -> None:
    pid = children.start(name, ["-m", module, "--device", "cpu", *flags])
    say(f"{name} started (process {pid})")


def _wait_until(look: Callable[[], bool], what: str, children: Children) -> None:
    """Wait for the children to get somewhere, with a line now and then."""
    from lipt.common.errors import UnreachableError

    started, said = time.monotonic(), -math.inf
    while not look():
        children.check()
        now = time.monotonic()
        if now - started > _START_SECONDS:
            raise UnreachableError(
                f"waited {now - started:.0f} s for {what}. See the logs of the processes, and "
                "whether the machine is busy."
            )
        if now - said >= SILENCE_SECONDS:
            say(f"waiting for {what} (since {now - started:.0f} s)")
            said = now
        time.sleep(_POLL_SECONDS)


def _prepare(_: object) -> Conduct:
    from lipt.common.imports import import_extra

    # Imported late: torch takes seconds, in which the coordinator is already starting.
    for package in ("scipy", "jinja2"):
        import_extra(package, package=package, extra="demo", needed_for="lipt demo")
    from lipt.common.data import open_dataset
    from lipt.trainer.cli.demo.experiment import conduct

    train, right = open_dataset(DATA), open_dataset(_RIGHT)
    is_wrong_N = (train.labels_N != right.labels_N).numpy()
    return partial(conduct, train, open_dataset(_TEST), is_wrong_N)
