"""The pipeline of one data set and seed: a coordinator, two workers, and the subsets asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import Children
from benchmarks.value.cells import Cell
from benchmarks.value.settings import VARIABLE, named
from lipt.common.errors import LiptError, UnreachableError
from lipt.common.states import RunState
from lipt.trainer.client.client import Client
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import RunView

_NUM_WORKERS = 2
# Reading cifar10-jpeg takes minutes where other benches run beside this one.
_START_SECONDS = 1800.0
_SOURCE = "benchmarks.value.settings:data"
_RUN = "value"
# The learners', whatever main training's is.
_MODEL = "resnet8"
# The paper's n=10, M=1, K=10, B=256, with a learning rate that suits a net this small; for
# digits as many examples as there are.
_LEARNERS: Mapping[str, Mapping[str, Any]] = {
    "cifar10-jpeg": {"learning_rate": 0.2, "num_snapshots": 3},
    "digits": {"num_learners": 8, "batch_size": 64, "learning_rate": 0.2, "num_snapshots": 3},
    "mnist5k": {"num_learners": 8, "batch_size": 64, "learning_rate": 0.2, "num_snapshots": 3},
}


@dataclass(frozen=True)
class Pipeline:
    """A run that is ready at a coordinator that serves it."""

    client: Client
    run: RunView

    def subset(self, cell: Cell) -> Subset:
        """What the cell's strategy chooses.

        Raises:
            LiptError: it cannot.
        """
        # What `auto` takes where it is told how long main training is.
        length = "converged" if cell.recipe == "converged" else "short"
        name, everything = cell.strategy.partition(":")[0], cell.strategy == "everything:soft"
        options = {"training": length} if name == "auto" else {}
        return self.client.subset(
            self.run.run_id,
            "uniform" if everything else name,
            fraction=1.0 if everything else cell.fraction,
            soft_labels=cell.soft,
            options=options,
            proxy=cell.proxy or None,
            labels="none" if cell.unlabelled else "given",
        )

    @property
    def pretraining_seconds(self) -> float:
        """From theta* to the soup."""
        costs = self.run.costs
        if costs is None:
            return 0.0
        return (
            costs.initialization_seconds
            + costs.sharding_seconds
            + costs.training_seconds
            + costs.merging_seconds
        )


@contextmanager
def pipeline(
    data: str, setting: str, seed: int, work: Path, *, num_examples: int
) -> Iterator[Pipeline]:
    """Start the processes, wait for the run, and end them; the coordinator's state stays.

    Args:
        data, setting, seed: what is served; the seed is the run's, too.
        work: where states and logs are kept, so that a stopped bench does no run twice.
        num_examples: how many are served.
    """
    place = work / f"{data}-{setting}-{seed}"
    place.mkdir(parents=True, exist_ok=True)
    address_file = place / "address"
    address_file.unlink(missing_ok=True)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LIPT_")},
        VARIABLE: named(data, setting, seed),
        "OMP_NUM_THREADS": "1",
    }
    if "LIPT_DATA" in os.environ:
        environment["LIPT_DATA"] = os.environ["LIPT_DATA"]
    with Children(place, environment) as children:
        common = ["--device", "cpu"]
        served = ["--data", _SOURCE, "--model", _MODEL, "--state-dir", str(place / "state")]
        where = ["--listen", "127.0.0.1:0", "--address-file", str(address_file)]
        children.start("coordinator", ["-m", "lipt.coordinator", *common, *served, *where])
        address = wait_for_address(children, address_file, log=place / "coordinator.log")
        for number in range(_NUM_WORKERS):
            cache = ["--cache-dir", str(place / f"cache-{number}"), "--name", f"worker-{number}"]
            joined = ["--coordinator", address]
            children.start(f"worker-{number}", ["-m", "lipt.worker", *common, *joined, *cache])
        with Client(address) as client:
            same = [run for run in client.runs() if run.name == _RUN]
            overrides = {"model": _MODEL, "seed": seed, "learners": _learners(data, num_examples)}
            run = same[0] if same else client.start_run(overrides, name=_RUN)
            ready = client.wait(run.run_id)
            if ready.state is not RunState.READY:
                raise LiptError(f"the run of {place.name} is {ready.state}: {ready.message}")
            yield Pipeline(client, ready)


def _learners(data: str, num_examples: int) -> dict[str, Any]:
    """The data's learners, with no more examples each than all of them have half of the data."""
    learners = dict(_LEARNERS[data])
    if "batch_size" in learners:
        share = num_examples // (2 * learners["num_learners"])
        learners["batch_size"] = min(learners["batch_size"], share)
    return learners


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
