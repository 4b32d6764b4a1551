"""The demo's course: start the processes, run the pipeline for each seed, collect the results."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lipt.common.errors import RunFailedError, UnreachableError
from lipt.common.imports.extras import import_extra
from lipt.common.states import RunState
from lipt.trainer.cli.demo import cluster
from lipt.trainer.cli.demo.processes import Children, ending_in_order
from lipt.trainer.cli.display.follow import Display, follow
from lipt.trainer.cli.display.waiting import run_talking
from lipt.trainer.client.client import Client
from lipt.trainer.comparison.verdict import Outcome, verdict
from lipt.trainer.views import DatasetView, RunView
from lipt.trainer.writing.files import write_atomically
from lipt.trainer.writing.jsonable import to_jsonable

if TYPE_CHECKING:
    from lipt.trainer.cli.demo.experiment import Experiment, SubsetResult

DATA, TEST = "digits-train", "digits-test"
MODEL = "resnet8"

# The children are on this machine: when they are away, they are gone.
_RECONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class DemoResult:
    """What the demo ends with.

    run, subsets: of the first seed.
    outcomes: of main training, over all seeds of the whole pipeline.
    verdict: whether a strategy beat random, in a sentence.
    """

    dataset: DatasetView
    run: RunView
    subsets: tuple[SubsetResult, ...]
    outcomes: tuple[Outcome, ...]
    verdict: str
    files: tuple[Path, ...]
    report: Path
    seconds: float


def run_demo(
    directory: Path,
    *,
    num_workers: int,
    make_display: Callable[[], Display],
    say: Callable[[str], None],
) -> DemoResult:
    """Run the whole pipeline on this machine, main training and verdict included.

    Args:
        directory: results and logs are written here; made where it is missing.
        num_workers: how many worker processes to start.
        make_display: where a run is shown, asked for when it has started.
        say: prints a line.

    Raises:
        MissingExtraError: what reads the data, compares or writes the report is not installed.
        ProcessEndedError: one of the processes died; the message has the end of its log.
        RunFailedError: a run failed.
        OSError: `directory` cannot be written to.
    """
    started = time.monotonic()
    logs, trials, report = (
        directory / name for name in ("logs", "comparison.jsonl", "report.html")
    )
    logs.mkdir(parents=True, exist_ok=True)
    with (
        ending_in_order(),
        tempfile.TemporaryDirectory(prefix="lipt-demo-", ignore_cleanup_errors=True) as name,
        Children(logs, cluster.environment()) as children,
    ):
        scratch = Path(name)
        address_file = cluster.start_coordinator(children, scratch, DATA, MODEL, say)
        experiment = run_talking(_prepare, say)
        address = cluster.wait_for_address(address_file, children, say)
        cluster.start_workers(children, scratch, address, num_workers, say)
        with Client(address, reconnect_seconds=_RECONNECT_SECONDS) as client:

            def pretrain(seed: int) -> RunView:
                return _pretrain(client, experiment, seed, children, make_display)

            try:
                cluster.wait_for_workers(client, num_workers, children, say)
                run = pretrain(experiment.plan.seeds[0])
                subsets = experiment.save_subsets(client, run, directory, say)
                rows = experiment.compare(client, run, pretrain, trials, say)
                weights = directory / "theta_p.safetensors"
                client.save_weights(weights, run.run_id, "pretrained")
                experiment.write_report(client, run, trials, report)
                dataset = client.info().dataset
            except UnreachableError:
                children.check()  # a dead process is the better explanation
                raise
        say("stopping the processes")
    if dataset is None:
        raise RunFailedError("the coordinator does not say which data it has.")
    record = directory / "run.json"
    write_atomically(record, f"{json.dumps(to_jsonable(run), indent=2)}\n".encode())
    files = (*(file for subset in subsets for file in subset.files), weights, record)
    return DemoResult(
        dataset=dataset,
        run=run,
        subsets=subsets,
        outcomes=tuple(rows),
        verdict=verdict(rows),
        files=(*files, trials, logs),
        report=report,
        seconds=time.monotonic() - started,
    )


def _prepare(report: Callable[[str], None]) -> Experiment:
    report(f"reading {DATA} and {TEST}")
    # Imported late: torch takes seconds, in which the coordinator is already starting.
    # What the data needs is asked for when it is opened.
    for package in ("scipy", "jinja2"):
        import_extra(package, package=package, extra="demo", needed_for="lipt demo")
    from lipt.trainer.cli.demo.experiment import Experiment

    return Experiment.on(DATA, TEST, MODEL)


def _pretrain(
    client: Client,
    experiment: Experiment,
    seed: int,
    children: Children,
    make_display: Callable[[], Display],
) -> RunView:
    run = client.start_run(experiment.plan.overrides(seed), name=f"demo-{seed}")
    changes = client.watch(run.run_id)
    final = follow(changes, make_display(), check=children.check) or run
    if final.state is not RunState.READY:
        raise RunFailedError(f"the run is {final.state}: {final.message}")
    return final
