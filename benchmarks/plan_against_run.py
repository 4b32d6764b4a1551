"""What `lipt plan` tells, and what then happens: a real coordinator and workers, at three sizes.

    python -m benchmarks.plan_against_run --out plan.jsonl digits cifar10-5000 cifar10-50000

Each size is planned for every strategy first, then a run is made by one worker in a fresh state
directory, and its subsets are asked for in the same order. Signals are computed for the first and
kept, so that `grand` has them with it, `auto` has its own, and the others are selection alone.
Memory is the most that a process ever held; what is on disk is all of the state directory.

Images are those of $LIPT_DATA/cifar10-jpeg (or ../shared/data).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet

from benchmarks.value.pipeline import wait_for_address
from lipt.trainer.cli.demo.processes import Children
from lipt.trainer.client.client import Client

_STRATEGIES = ("grand", "craig", "gradmatch", "glister", "auto")
_FRACTION = 0.1
_MODEL = "resnet8"
# Strategies that have signals of their own, or are the first to have them computed.
_WITH_SIGNALS = ("grand", "auto")


@dataclass(frozen=True)
class Row:
    """What was told of something, between two ends, and what it was."""

    size: str
    what: str
    low: float
    high: float
    happened: float

    @property
    def times(self) -> float:
        """How far it is off the nearer end: 1 between them, else above 1."""
        if self.happened < self.low:
            return self.low / self.happened
        return max(1.0, self.happened / self.high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="+", help="digits, or cifar10-N for N of its images")
    parser.add_argument("--out", type=Path, help="a file of rows, one object a line")
    parser.add_argument("--strategies", default=",".join(_STRATEGIES))
    arguments = parser.parse_args()
    strategies = arguments.strategies.split(",")
    with tempfile.TemporaryDirectory(prefix="lipt-bench-") as folder:
        for size in arguments.sizes:
            rows = measure(size, strategies, Path(folder))
            for row in rows:
                print(_line(row), flush=True)
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.writelines(f"{json.dumps(asdict(row))}\n" for row in rows)


def measure(size: str, strategies: list[str], folder: Path) -> list[Row]:
    """Plan, do it, and compare."""
    source = _source(size, folder)
    before = os.getloadavg()[0]
    plans = {strategy: _plan(source, strategy) for strategy in strategies}
    place = folder / size
    place.mkdir()
    with _cluster(source, place) as (client, processes):
        run = client.wait(client.start_run({"model": _MODEL}).run_id)
        memory = {"soup": _most_bytes(processes["compute"])}
        seconds: dict[str, float] = {}
        disk = {"run": _disk_bytes(place / "state")}
        for strategy in strategies:
            subset = client.subset(run.run_id, strategy, fraction=_FRACTION)
            seconds[strategy] = float(subset.manifest["costs"]["selection_seconds"])
            memory[strategy] = _most_bytes(processes["compute"])
        disk["all"] = _disk_bytes(place / "state")
        memory["worker"] = _most_bytes(processes["worker"])
    costs = run.costs
    if costs is None:
        raise ValueError("a run that is ready without its costs")
    print(f"{size}: load {before:.1f} before, {os.getloadavg()[0]:.1f} after", flush=True)
    first = {row["stage"]: row for row in plans[strategies[0]]["rows"]}
    happened = {
        "theta*": costs.initialization_seconds,
        "shards": costs.sharding_seconds,
        "learners": costs.training_seconds,
        "soup": costs.merging_seconds,
    }
    rows = [
        Row(size, f"{stage}, s", first[stage]["seconds_low"], first[stage]["seconds_high"], took)
        for stage, took in happened.items()
    ]
    for strategy in strategies:
        stages = ("signals", "selection") if strategy in _WITH_SIGNALS else ("selection",)
        told = [row for row in plans[strategy]["rows"] if row["stage"] in stages]
        low, high = (sum(row[f"seconds_{end}"] for row in told) for end in ("low", "high"))
        rows.append(Row(size, f"{'+'.join(stages)} {strategy}, s", low, high, seconds[strategy]))
    moved = costs.bytes_to_workers + costs.bytes_from_workers
    rows.append(_exactly(size, "moved, bytes", first["learners"]["moved_bytes"], moved))
    run_stages = ("theta*", "shards", "learners", "soup")
    told_disk = sum(first[stage]["disk_bytes"] for stage in run_stages)
    rows.append(_exactly(size, "the run on disk, bytes", told_disk, disk["run"]))
    in_soup = max(first[stage]["memory_bytes"] for stage in ("index", "theta*", "shards", "soup"))
    rows.append(_exactly(size, "memory to theta_p, bytes", in_soup, memory["soup"]))
    worker = first["learners"]["memory_bytes"]
    rows.append(_exactly(size, "memory of the worker, bytes", worker, memory["worker"]))
    most = 0
    for strategy in strategies:
        most = max(most, plans[strategy]["memory_bytes"]["compute"])
        rows.append(_exactly(size, f"memory to {strategy}, bytes", most, memory[strategy]))
    return rows


def _exactly(size: str, what: str, told: float, happened: float) -> Row:
    return Row(size, what, told, told, happened)


def _line(row: Row) -> str:
    said = f"{row.low:.4g}" if row.low == row.high else f"{row.low:.4g} to {row.high:.4g}"
    return f"| {row.size} | {row.what} | {said} | {row.happened:.4g} | {row.times:.2f} |"


def _plan(source: str, strategy: str) -> Any:
    words = ["plan", "--data", source, "--model", _MODEL, "--strategy", strategy]
    words += ["--fraction", str(_FRACTION), "--device", "cpu", "--json"]
    command = [sys.executable, "-m", "lipt.trainer.cli", *words]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _source(size: str, folder: Path) -> str:
    name, _, number = size.partition("-")
    if name != "cifar10":
        return size
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("LIPT_DATA", beside)) / "cifar10-jpeg" / "train.parquet"
    table = pyarrow.parquet.read_table(path)
    # Evenly spread: they are sorted by class.
    table = table.take(list(range(0, len(table), len(table) // int(number))))
    some = folder / f"{size}.parquet"
    pyarrow.parquet.write_table(table, some)
    return f"parquet:{some}"


@contextmanager
def _cluster(source: str, place: Path) -> Iterator[tuple[Client, dict[str, psutil.Process]]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LIPT_")}
    address_file = place / "address"
    with Children(place, kept) as children:
        served = ["--data", source, "--model", _MODEL, "--state-dir", str(place / "state")]
        where = ["--listen", "127.0.0.1:0", "--address-file", str(address_file)]
        words = ["-m", "lipt.coordinator", "--device", "cpu", *served, *where]
        coordinator = psutil.Process(children.start("coordinator", words))
        address = wait_for_address(children, address_file, log=place / "coordinator.log")
        own = ["--coordinator", address, "--cache-dir", str(place / "cache")]
        worker = children.start("worker", ["-m", "lipt.worker", "--device", "cpu", *own])
        computing = max(coordinator.children(), key=_most_bytes)
        with Client(address) as client:
            yield client, {"worker": psutil.Process(worker), "compute": computing}


def _most_bytes(process: psutil.Process) -> int:
    """The most that it has ever held."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    [line] = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
