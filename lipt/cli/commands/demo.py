"""`lipt demo`: an experiment on a `lipt up` of its own, which never outlives this process.

The experiment: a diagnosis, subsets of runs, main training on each, and two pages.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Option

from lipt.cli.output import run_with_progress
from lipt.common.terminal import print_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lipt.data.dataset import Dataset
    from lipt.trainer.client.client import Client
    from lipt.trainer.comparison.trial import ComparisonPlan
    from lipt.trainer.views import RunView

# One label in twenty is wrong, as in real data; here on purpose. The model is that of the plan.
DATA, MODEL = "digits-mislabelled", "resnet8"
# The data with its right labels, and what accuracy is measured on.
_RIGHT, _TEST = "digits-train", "digits-test"
FRACTION = 0.1
# Columns of the comparison's table that the demo prints; the report has all of them.
_SHOWN = ("fraction", "strategy", "accuracy", "to random (95% interval)", "steps", "total time")
_POLL_SECONDS, _START_SECONDS, _STOP_SECONDS = 0.1, 120.0, 60.0


def demo(
    *,
    directory: Path = Option("lipt-demo", "--dir", help="Where results and logs are written."),
    workers: int = Option(3, min=1, max=64, help="How many workers to start."),
) -> None:
    """Try the whole pipeline on this machine, on images of digits.

    Starts a coordinator and workers, diagnoses the digits, and trains on subsets of them.
    """
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
                [sys.executable, "-m", "lipt.cli", "up", *flags],
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
    from lipt.cli.commands.run import follow
    from lipt.cli.terminal_client import TerminalClient
    from lipt.common.errors import RunFailedError, UnreachableError
    from lipt.common.states import RunState

    print_line(f"reading {DATA} and {_TEST}")
    # Imported late: torch takes seconds, in which the coordinator is already starting.
    from lipt.data.loading import open_dataset

    train, right, test = map(open_dataset, (DATA, _RIGHT, _TEST))
    is_wrong_N = (train.labels_N != right.labels_N).numpy()

    # The coordinator is on this machine: when it is away, it is gone.
    with TerminalClient(_address(log, check), reconnect_seconds=5) as client:

        def finish(run: RunView) -> RunView:
            changes = client.watch(run.run_id)
            final = follow(changes, silence=client.silence, check=check) or run
            if final.state is not RunState.READY:
                raise RunFailedError(f"the run is {final.outcome}.")
            return final

        try:
            return run_experiment(make_plan(), train, test, is_wrong_N, client, finish, directory)
        except UnreachableError:
            check()  # a dead process is the better explanation
            raise


def _address(log: Path, check: Callable[[], None]) -> str:
    """The coordinator's address, once it listens."""
    from lipt.common.errors import UnreachableError

    def wait(_: object) -> str:
        started = time.monotonic()
        while not (match := re.search(r"(?m)^lipt serves \S+ on (\S+), ", log.read_text("utf-8"))):
            check()
            if time.monotonic() - started > _START_SECONDS:
                raise UnreachableError(
                    f"waited {_START_SECONDS:.0f} s for the coordinator to listen. See the log."
                )
            time.sleep(_POLL_SECONDS)
        return match[1]

    return run_with_progress(wait, print_line, activity="waiting for the coordinator to listen")


def run_experiment(
    plan: ComparisonPlan,
    train: Dataset,
    test: Dataset,
    is_wrong_N: NDArray[np.bool_],
    client: Client,
    finish: Callable[[RunView], RunView],
    directory: Path,
) -> list[str]:
    import torch

    from lipt.cli.commands.run import state_line
    from lipt.trainer.comparison.compare import compare
    from lipt.trainer.comparison.outcomes import outcomes
    from lipt.trainer.comparison.trial import read_trials
    from lipt.trainer.comparison.verdict import cells, verdict
    from lipt.trainer.files import write_atomically
    from lipt.trainer.formatting import table_lines, to_jsonable
    from lipt.trainer.report.report import render, render_diagnosis

    # All start now: the workers train the next learners while others are merged and compared.
    runs = {
        seed: client.start_run(plan.overrides(seed), name=f"demo-{seed}") for seed in plan.seeds
    }
    finished = functools.cache(lambda seed: finish(runs[seed]))
    diagnosis = client.diagnose()
    diagnosis_page, page = directory / "diagnosis.html", directory / "report.html"
    write_atomically(diagnosis_page, render_diagnosis(diagnosis, train).encode())
    suspects = [issue.id for issue in diagnosis.label_issues()]
    worst = suspects[:20]
    summary = (
        f"{is_wrong_N.sum()} of {len(train)} labels are wrong on purpose. The diagnosis does not "
        f"know which, and suspects {len(suspects)} labels: {is_wrong_N[suspects].sum()} of these "
        f"are wrong, and {is_wrong_N[worst].sum()} of the first {len(worst)}."
    )
    print_line(summary)
    run = finished(plan.seeds[0])
    record = directory / "run.json"
    write_atomically(record, f"{json.dumps(to_jsonable(run), indent=2)}\n".encode())
    subsets = _subsets(client, run, train, is_wrong_N, plan.strategies, directory)
    trials = directory / "comparison.jsonl"
    trials.unlink(missing_ok=True)  # of an earlier demo
    # A net this small trains fastest on one thread, and to the same bits on every machine.
    torch.set_num_threads(1)

    done = compare(
        client.strategies(),
        plan,
        train,
        test,
        pretrain=finished,
        choose=lambda run, strategy, **asked: client.subset(run.run_id, strategy, **asked),
        out=trials,
        device="cpu",
        print_line=print_line,
    )
    weights = directory / "theta_p.safetensors"
    client.save_weights(weights, run.run_id, "pretrained")
    shown = (plan.strategies, FRACTION, read_trials(trials))
    report = render(client, run, train, *shown, diagnosis=diagnosis)
    write_atomically(page, report.encode())
    compared = outcomes(done)
    table = [[row[name] for name in _SHOWN] for row in map(cells, compared)]
    return [
        f"{train.source}: {len(train)} examples, {train.inputs}, {len(train.class_names)} classes",
        summary,
        state_line(run),
        "",
        *subsets,
        "",
        *table_lines(_SHOWN, table),
        "",
        *verdict(compared).splitlines(),
        "",
        f"diagnosis: {diagnosis_page}",
        f"report: {page}",
        f"subsets, weights, the run's record and every training: {directory}",
    ]


def make_plan() -> ComparisonPlan:
    from lipt.trainer.comparison.trial import ComparisonPlan
    from lipt.trainer.main_training import Recipe

    return ComparisonPlan(
        strategies=("auto", "facility_location"),
        fractions=(FRACTION,),
        seeds=(0, 1, 2),
        model=MODEL,
        # 50 passes over 144 images, after which accuracy on them has converged. Digits are not to
        # be mirrored, and 4 pixels are half of one.
        recipe=Recipe(steps=150, batch_size=48, augmentation="crop", padding=1),
        # Sizes for 1,442 images of 8x8: 8 x 1 x 64 examples are shipped, 36% of the set. Images
        # this small cost next to nothing, so statistics are estimated from more of them.
        run_overrides={
            "learners": {
                "num_learners": 8,
                "num_minibatches": 1,
                "num_steps": 10,
                "batch_size": 64,
                "learning_rate": 0.2,
            },
            "soup": {"batch_norm_examples": 1024},
        },
    )


def _subsets(
    client: Client,
    run: RunView,
    train: Dataset,
    is_wrong_N: NDArray[np.bool_],
    strategies: Sequence[str],
    directory: Path,
) -> list[str]:
    from lipt.trainer.comparison.trial import FIXED
    from lipt.trainer.formatting import table_lines
    from lipt.trainer.report.report import count_classes

    rows: list[tuple[str, ...]] = []
    for strategy in (*FIXED, *strategies):
        subset = client.subset(run.run_id, strategy, fraction=FRACTION)
        print_line(f"subset by {strategy}: {len(subset)} examples, digest {subset.digest[:12]}")
        subset.save(directory / f"subset-{strategy}.npy")
        counts = count_classes(train, subset.indices)
        per_class = f"{min(counts)} to {max(counts)}"
        num_wrong = str(is_wrong_N[subset.indices].sum())
        rows.append((strategy, str(len(subset)), per_class, num_wrong))
    return table_lines(("strategy", "examples", "per class", "wrong labels"), rows)
