"""`lipt demo`: the experiment on its own `lipt up`, which ends with this process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Option

from lipt.common.terminal import print_line
from lipt.trainer.cli.display.output import run_with_progress

if TYPE_CHECKING:
    from lipt.trainer.views import RunView

# One label in twenty is wrong, as in real data; here on purpose. The model is that of the plan.
DATA, MODEL = "digits-mislabelled", "resnet8"
# The data with its right labels, and what accuracy is measured on.
_RIGHT, _TEST = "digits-train", "digits-test"
_POLL_SECONDS, _START_SECONDS, _STOP_SECONDS = 0.1, 120.0, 60.0


def demo(
    *,
    directory: Path = Option("lipt-demo", "--dir", help="Where results and logs are written."),
    workers: int = Option(3, min=1, max=64, help="How many workers to start."),
) -> None:
    """Start a coordinator and workers here, diagnose the digits, and train on subsets of them."""
    from lipt.common.imports import import_extra

    # Before torch is loaded, here and in the children. Images of 8x8 gain nothing from a
    # second thread, which would only take the core that another process needs.
    os.environ["OMP_NUM_THREADS"] = "1"
    # A closed terminal, too, ends this process as Ctrl-C does: with its clean-up.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    started = time.monotonic()
    for package in ("scipy", "jinja2"):
        import_extra(package, package=package, extra="demo", needed_for="lipt demo")
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "lipt-up.log"
    with _serving(log, workers) as check:
        lines = _run(directory, log, check)
        print_line("stopping the processes")
    for line in ("", *lines, f"done in {time.monotonic() - started:.1f} s"):
        print_line(line)


@contextmanager
def _serving(log: Path, num_workers: int) -> Iterator[Callable[[], None]]:
    """`lipt up` as a child process during the block, which is given a check that it is alive."""
    from lipt.common.errors import ProcessEndedError

    # LIPT_* settings are for other coordinators and workers.
    environment = {name: value for name, value in os.environ.items() if name[:5] != "LIPT_"}
    with tempfile.TemporaryDirectory(prefix="lipt-demo-", ignore_cleanup_errors=True) as folder:
        served = ("--data", DATA, "--model", MODEL, "--state-dir", f"{folder}/state")
        pool = ("--listen", "127.0.0.1:0", "--workers", str(num_workers))
        flags = (*served, *pool, "--", "--cache-dir", f"{folder}/cache")
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - this interpreter, no shell
                [sys.executable, "-m", "lipt.trainer.cli", "up", *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment | {"LIPT_DEVICE": "cpu"},
                # Ctrl-C reaches this process only, which then ends the other in order.
                start_new_session=True,
            )
        print_line(f"lipt up started (process {process.pid})")

        def check() -> None:
            if (status := process.poll()) is not None:
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                tail = "\n".join(f"    {line}" for line in lines[-15:])
                raise ProcessEndedError(
                    f"lipt up has ended with status {status}; {log} ends with:\n{tail}"
                )

        try:
            yield check
        finally:
            # An impatient second Ctrl-C must not leave orphans.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _run(directory: Path, log: Path, check: Callable[[], None]) -> list[str]:
    from lipt.common.errors import RunFailedError, UnreachableError
    from lipt.common.states import RunState
    from lipt.trainer.cli.display.runs import follow
    from lipt.trainer.client.client import Client

    print_line(f"reading {DATA} and {_TEST}")
    # Imported late: torch takes seconds, in which the coordinator is already starting.
    from lipt.common.data import open_dataset
    from lipt.trainer.cli.experiment import run_experiment

    train, right, test = map(open_dataset, (DATA, _RIGHT, _TEST))
    is_wrong_N = (train.labels_N != right.labels_N).numpy()

    def listening() -> list[str]:
        return re.findall(r"^lipt serves \S+ on (\S+), ", log.read_text("utf-8"), re.MULTILINE)

    _wait_until(listening, "the coordinator to listen", check)
    # A coordinator on this machine that does not answer has ended.
    with Client(listening()[0], reconnect_seconds=5) as client:

        def finish(run: RunView) -> RunView:
            final = follow(client.watch(run.run_id), check=check) or run
            if final.state is not RunState.READY:
                raise RunFailedError(f"the run is {final.outcome}.")
            return final

        try:
            return run_experiment(train, test, is_wrong_N, client, finish, directory, print_line)
        except UnreachableError:
            check()  # a dead process is the better explanation
            raise


def _wait_until(look: Callable[[], object], what: str, check: Callable[[], None]) -> None:
    from lipt.common.errors import UnreachableError

    def wait(_: object) -> None:
        started = time.monotonic()
        while not look():
            check()
            if time.monotonic() - started > _START_SECONDS:
                raise UnreachableError(f"waited {_START_SECONDS:.0f} s for {what}. See the log.")
            time.sleep(_POLL_SECONDS)

    run_with_progress(wait, print_line, activity=f"waiting for {what}")
