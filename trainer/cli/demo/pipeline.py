"""The demo: start a coordinator and workers here, conduct the experiment, end them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lipt.common.errors import RunFailedError, UnreachableError
from lipt.common.imports import import_extra
from lipt.common.states import RunState
from lipt.trainer.cli.demo.processes import DATA, Children, Cluster, ending_in_order, environment
from lipt.trainer.cli.display.follow import Display, follow
from lipt.trainer.cli.display.output import Say, run_talking
from lipt.trainer.client.client import Client
from lipt.trainer.views import RunView

if TYPE_CHECKING:
    from lipt.trainer.cli.demo.experiment import DemoResult

# The data with its right labels, and what accuracy is measured on.
RIGHT, TEST = "digits-train", "digits-test"

# The children are on this machine: when they are away, they are gone.
_RECONNECT_SECONDS = 5.0


def run_demo(
    directory: Path, *, num_workers: int, make_display: Callable[[], Display], say: Say
) -> DemoResult:
    """Run the whole pipeline on this machine, main training and verdict included."""
    started = time.monotonic()
    logs = directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with (
        ending_in_order(),
        tempfile.TemporaryDirectory(prefix="lipt-demo-", ignore_cleanup_errors=True) as scratch,
        Children(logs, environment()) as children,
    ):
        cluster = Cluster(children, Path(scratch), say)
        cluster.start_coordinator()
        conduct = run_talking(_prepare, say)
        address = cluster.wait_for_address()
        cluster.start_workers(address, num_workers)
        with Client(address, reconnect_seconds=_RECONNECT_SECONDS) as client:

            def finish(run: RunView) -> RunView:
                changes = client.watch(run.run_id)
                final = follow(changes, make_display(), check=children.check) or run
                if final.state is not RunState.READY:
                    raise RunFailedError(f"the run is {final.outcome}.")
                return final

            try:
                cluster.wait_for_workers(client, num_workers)
                result = conduct(client, finish, directory, say)
            except UnreachableError:
                children.check()  # a dead process is the better explanation
                raise
        say("stopping the processes")
    return replace(result, seconds=time.monotonic() - started)


def _prepare(
    report: Say,
) -> Callable[[Client, Callable[[RunView], RunView], Path, Say], DemoResult]:
    report(f"reading {DATA} and {TEST}")
    # Imported late: torch takes seconds, in which the coordinator is already starting.
    # What the data needs is asked for when it is opened.
    for package in ("scipy", "jinja2"):
        import_extra(package, package=package, extra="demo", needed_for="lipt demo")
    from lipt.common.data import open_dataset
    from lipt.trainer.cli.demo.experiment import conduct

    train, right = open_dataset(DATA), open_dataset(RIGHT)
    is_wrong_N = (train.labels_N != right.labels_N).numpy()
    return partial(conduct, train, open_dataset(TEST), is_wrong_N)
