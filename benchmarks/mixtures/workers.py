"""Workers of a run by source: its seconds with one, two and four of them, as ratios.

    python -m benchmarks.mixtures.workers [--case cifar-six] [--workers 1 2 4]

All run on this machine, each learner on one thread, so no ratio can exceed the number of cores. The
learners are the same ones whatever the number of workers; a fit to the case's first target follows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from time import perf_counter, sleep

from benchmarks.mixtures.cases import CASES
from benchmarks.processes import Children
from lipt.data.dataset import Dataset
from lipt.mixture_data import open_mixture
from lipt.trainer.client.client import Client

CASE = "MIXTURE_BENCHMARK_CASE"
_ADDRESS = "127.0.0.1:50871"


def pool() -> Dataset:
    """The sources of the case that the environment names, for a coordinator."""
    case = CASES[os.environ[CASE]](0)
    target, _ = next(iter(case.targets.values()))
    return open_mixture(case.sources, target, target=case.target).pool


def measure(name: str, num_workers: int) -> tuple[float, float]:
    """Wall seconds of the learners, and of a mixture for a target."""
    case = CASES[name](0)
    (target, _), module = next(iter(case.targets.values())), "benchmarks.mixtures.workers"
    environment = {**os.environ, CASE: name, "OMP_WAIT_POLICY": "PASSIVE"}
    with (
        tempfile.TemporaryDirectory(prefix="lipt-workers-") as folder,
        Children(Path(folder), environment) as children,
        Client(_ADDRESS, reconnect_seconds=600) as client,
    ):
        coordinator = ("--data", f"{module}:pool", "--allow-module", module, "--listen", _ADDRESS)
        state = ("--state-dir", f"{folder}/state", "--model", case.model)
        children.start("coordinator", ["-m", "lipt.coordinator", *coordinator, *state])
        client.reach(600)
        for number in range(num_workers):
            cache = f"{folder}/worker-{number}"
            arguments = ["--coordinator", _ADDRESS, "--cache-dir", cache]
            children.start(f"worker-{number}", ["-m", "lipt.worker", *arguments])
        while len(client.info().workers) < num_workers:
            sleep(0.2)
        run = client.wait(client.start_run(client.settings_for("mixture")).run_id)
        assert run.costs is not None
        began = perf_counter()
        client.mixture(run.run_id, target, target=case.target)
        return run.costs.training_seconds, perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of a run by source with several workers.")
    parser.add_argument("--case", default="cifar-six", choices=CASES)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    given = parser.parse_args()
    first: float | None = None
    for number in given.workers:
        learners, fit = measure(given.case, number)
        first = first or learners
        print(
            f"{number} workers: learners {learners:.1f} s, {first / learners:.2f} times as fast; "
            f"a mixture {fit:.1f} s"
        )


if __name__ == "__main__":
    main()
