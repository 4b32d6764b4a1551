"""Cells of the bench, LiPT and the warm-ups that it replaces, and how each is measured and kept."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import json_lines
from benchmarks.processes import serving
from lipt.trainer.client.client import Client
from lipt.trainer.subsets.subset import Subset
from lipt.trainer.views import CostsView

LIPT = "lipt"


@dataclass(frozen=True, order=True)
class Cell:
    """One measurement.

    scale: of what size; see `SCALES`.
    pretraining: `LIPT`, or what the strategy is given as its option of that name.
    num_workers: worker processes.
    round: of several of the same.
    """

    scale: str
    pretraining: str
    num_workers: int
    round: int = 0

    @property
    def name(self) -> str:
        """For folders and for what is said meanwhile."""
        what = self.pretraining.replace(":", "-")
        return f"{self.scale}-{what}-{self.num_workers}w-{self.round}"


@dataclass(frozen=True)
class Scale:
    """How large everything is.

    source: the coordinator's data.
    model: of the learners and of the warm-ups.
    learners: settings of the learners that are not the defaults.
    warm_ups: epochs that LiPT stands against, the ten short runs of GraNd first.
    num_workers: how many worker processes LiPT is measured with.
    """

    source: str
    model: str
    learners: Mapping[str, Any]
    warm_ups: tuple[str, str]
    num_workers: tuple[int, ...]


def _cifar10() -> str:
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return f"parquet:{Path(os.environ.get('LIPT_DATA', beside)) / 'cifar10-jpeg/train.parquet'}"


SCALES: Mapping[str, Scale] = {
    "full": Scale(_cifar10(), "resnet8", {}, ("epochs:1x10", "epochs:15"), (1, 2)),
    "tiny": Scale(
        "digits",
        "resnet8",
        {"num_minibatches": 1, "num_steps": 2, "batch_size": 32},
        ("epochs:1x2", "epochs:2"),
        (1, 2),
    ),
}


def cells(scale: str, rounds: int) -> Iterator[Cell]:
    """Every cell, in turns: each round has all of them."""
    sizes = SCALES[scale]
    for number in range(rounds):
        for num_workers in sizes.num_workers:
            yield Cell(scale, LIPT, num_workers, number)
        for pretraining in sizes.warm_ups:
            yield Cell(scale, pretraining, 0, number)


_STRATEGY, _FRACTION = "grand", 0.1


@dataclass(frozen=True)
class Price:
    """Cost of a cell; seconds and CPU seconds, of all processes, from "run start".

    start_seconds: until the processes were up and had found each other, before that.
    stages: seconds by name, in order; `waiting` is what no stage was under way in.
    pretrained_seconds: until there were weights to select on.
    subset_seconds: until the first subset had arrived.
    bytes_moved: between the coordinator and its workers.
    """

    start_seconds: float
    stages: dict[str, float]
    pretrained_seconds: float
    subset_seconds: float
    cpu_seconds: float
    bytes_moved: int = 0


@dataclass
class _Cluster:
    """Processes that are up."""

    client: Client
    start_seconds: float
    process_ids: list[int]

    def cpu_seconds(self) -> float:
        """Of all processes and of those that they have started."""
        total = 0.0
        for process_id in self.process_ids:
            own = psutil.Process(process_id)
            for process in (own, *own.children(recursive=True)):
                times = process.cpu_times()
                total += times.user + times.system
        return total


def measure(cell: Cell, work: Path) -> Price:
    """Start everything, measure, end everything, and remove what it wrote.

    Raises:
        LiptError: the run or the subset came to nothing; what the processes wrote stays.
    """
    scale, place = SCALES[cell.scale], work / cell.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    # A warm-up needs a run, and its one learner a worker.
    with _cluster(scale, place, cell.num_workers or 1) as cluster:
        if cell.pretraining == LIPT:
            price = _lipt(cluster, scale)
        else:
            price = _warm_up(cluster, scale, cell)
    shutil.rmtree(place)
    return price


def _lipt(cluster: _Cluster, scale: Scale) -> Price:
    client, cpu_before, started = cluster.client, cluster.cpu_seconds(), time.perf_counter()
    run = client.wait(_start(client, scale, dict(scale.learners)))
    pretrained_seconds = time.perf_counter() - started
    client.subset(run.run_id, _STRATEGY, fraction=_FRACTION)
    subset_seconds = time.perf_counter() - started
    costs = run.costs
    if costs is None:
        raise ValueError(f"run {run.run_id} is ready without its costs")
    stages = _stages(costs)
    stages["waiting"] = max(0.0, pretrained_seconds - sum(stages.values()))
    stages["signals and selection"] = subset_seconds - pretrained_seconds
    return Price(
        cluster.start_seconds,
        stages,
        pretrained_seconds,
        subset_seconds,
        cluster.cpu_seconds() - cpu_before,
        costs.bytes_to_workers + costs.bytes_from_workers,
    )


def _stages(costs: CostsView) -> dict[str, float]:
    return {
        "initialization": costs.initialization_seconds,
        "sharding": costs.sharding_seconds,
        "training": costs.training_seconds,
        "merging": costs.merging_seconds,
    }


def _warm_up(cluster: _Cluster, scale: Scale, cell: Cell) -> Price:
    # The smallest run there can be: of its weights nothing is used, and its time is not counted.
    smallest = {**scale.learners, "num_learners": 1, "num_minibatches": 1, "num_steps": 1}
    client = cluster.client
    run = client.wait(_start(client, scale, smallest))
    cpu_before, started = cluster.cpu_seconds(), time.perf_counter()
    options = {"pretraining": cell.pretraining}
    subset = client.subset(run.run_id, _STRATEGY, fraction=_FRACTION, options=options)
    subset_seconds = time.perf_counter() - started
    cpu_seconds = cluster.cpu_seconds() - cpu_before
    warm_up_seconds = _warm_up_seconds(subset)
    rest = subset_seconds - warm_up_seconds
    stages = {"training": warm_up_seconds, "signals and selection": rest}
    return Price(cluster.start_seconds, stages, warm_up_seconds, subset_seconds, cpu_seconds)


def _warm_up_seconds(subset: Subset) -> float:
    costs: dict[str, Any] = subset.manifest["costs"]
    return float(costs["warm_up_seconds"])


def _start(client: Client, scale: Scale, learners: dict[str, Any], **more: Any) -> str:
    return client.start_run({"model": scale.model, "learners": learners, **more}).run_id


@contextmanager
def _cluster(scale: Scale, place: Path, num_workers: int) -> Iterator[_Cluster]:
    started = time.perf_counter()
    with (
        serving(place, scale.source, scale.model, num_workers=num_workers) as service,
        Client(service.address) as client,
    ):
        while len(client.info().workers) < num_workers:
            service.children.check()
            time.sleep(0.2)
        yield _Cluster(client, time.perf_counter() - started, service.process_ids)


@dataclass(frozen=True)
class Row:
    """A price, and where and when it was measured.

    load_averages: of one minute, before and after.
    """

    price: Price
    machine: str
    versions: dict[str, str]
    load_averages: tuple[float, float]
    measured_at: str


def read_rows(path: Path) -> dict[Cell, Row]:
    """Recorded rows by cell: the last of each cell, without lines that a kill has cut."""
    rows: dict[Cell, Row] = {}
    for found in json_lines.read(path):
        price = Price(**found.pop("price"))
        before, after = found.pop("load_averages")
        cell = Cell(**found.pop("cell"))
        rows[cell] = Row(price, load_averages=(before, after), **found)
    return rows


def add_row(path: Path, cell: Cell, row: Row) -> None:
    """Write one more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    json_lines.append(path, {"cell": asdict(cell), **asdict(row)})
