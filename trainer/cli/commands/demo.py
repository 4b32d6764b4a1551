"""`lipt demo`: the whole service on this machine, on real images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lipt.common.terminal import say as say_line
from lipt.trainer.cli.display.output import Say, print_result, run_talking
from lipt.trainer.cli.options import Json

if TYPE_CHECKING:
    from lipt.trainer.cli.demo.experiment import DemoResult
    from lipt.trainer.client.client import Client
    from lipt.trainer.views import RunView

    Conduct = Callable[[Client, Callable[[RunView], RunView], Path, Say], DemoResult]

# The data with its right labels, and what accuracy is measured on.
_RIGHT, _TEST = "digits-train", "digits-test"

# The children are on this machine: when they are away, they are gone.
_RECONNECT_SECONDS = 5.0


def demonstrate(
    *,
    directory: Annotated[
        Path, typer.Option("--dir", help="Where results and logs are written.")
    ] = Path("lipt-demo"),
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="How many worker processes.")
    ] = 3,
    json: Json = False,
) -> None:
    """Start a coordinator and workers here, diagnose the digits, and train on subsets of them."""
    import os
    import time
    from dataclasses import replace

    # Before torch is loaded, here and in the children. Images of 8x8 gain nothing from a
    # second thread, which would only take the core that another process needs.
    os.environ["OMP_NUM_THREADS"] = "1"
    started = time.monotonic()
    result = _run(directory, workers, partial(say_line, err=json), as_json=json)
    from lipt.trainer.cli.demo.experiment import report_lines  # imports torch

    result = replace(result, seconds=time.monotonic() - started)
    print_result(result, report_lines(result), as_json=json)


def _run(directory: Path, num_workers: int, say: Say, *, as_json: bool) -> DemoResult:
    import os
    import tempfile

    from lipt.common.errors import RunFailedError, UnreachableError
    from lipt.common.states import RunState
    from lipt.trainer.cli.demo import processes
    from lipt.trainer.cli.display.follow import follow, make_display
    from lipt.trainer.client.client import Client

    logs = directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    # LIPT_* settings are for other processes.
    environment = {name: value for name, value in os.environ.items() if name[:5] != "LIPT_"}
    with (
        processes.ending_in_order(),
        tempfile.TemporaryDirectory(prefix="lipt-demo-", ignore_cleanup_errors=True) as folder,
        processes.Children(logs, environment) as children,
    ):
        scratch = Path(folder)
        wait_for_address = processes.start_coordinator(children, scratch, say)
        conduct = run_talking(_prepare, say)
        address = wait_for_address()
        processes.start_workers(children, scratch, address, num_workers, say)
        with Client(address, reconnect_seconds=_RECONNECT_SECONDS) as client:

            def finish(run: RunView) -> RunView:
                changes = client.watch(run.run_id)
                final = follow(changes, make_display(as_json=as_json), check=children.check) or run
                if final.state is not RunState.READY:
                    raise RunFailedError(f"the run is {final.outcome}.")
                return final

            def joined() -> bool:
                return len(client.info().workers) >= num_workers

            try:
                # Else the first worker would do all the work alone.
                processes.wait_until(joined, f"{num_workers} workers to join", children, say)
                result = conduct(client, finish, directory, say)
            except UnreachableError:
                children.check()  # a dead process is the better explanation
                raise
        say("stopping the processes")
    return result


def _prepare(report: Say) -> Conduct:
    from lipt.common.imports import import_extra
    from lipt.trainer.cli.demo.processes import DATA

    report(f"reading {DATA} and {_TEST}")
    # Imported late: torch takes seconds, in which the coordinator is already starting.
    for package in ("scipy", "jinja2"):
        import_extra(package, package=package, extra="demo", needed_for="lipt demo")
    from lipt.common.data import open_dataset
    from lipt.trainer.cli.demo.experiment import conduct

    train, right = open_dataset(DATA), open_dataset(_RIGHT)
    is_wrong_N = (train.labels_N != right.labels_N).numpy()
    return partial(conduct, train, open_dataset(_TEST), is_wrong_N)
