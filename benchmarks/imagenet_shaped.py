"""A run over data of ImageNet's shape, from the index to the served subset, on this machine.

Images of 1,000 classes are made and put into tar shards, then everything goes its ordinary way:
`lipt plan`, a coordinator, a worker that trains a few learners and shares the pass over the data, a
subset for two strategies, and trainers that fetch it. Told are seconds, bytes, and the most memory
that each process ever held.

    python -m benchmarks.imagenet_shaped [--examples 1280000] [--shards 128] [--folder DIR]

Made once, the shards in DIR serve later runs.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from tests.cluster import Cluster

NUM_CLASSES, SIZE = 1000, 32
MODEL, STRATEGIES, NUM_TRAINERS = "resnet8", ("el2n", "craig"), 10
RUN = {
    "model": MODEL,
    "evaluation_threads": 1,
    "learners": {"num_learners": 4, "num_minibatches": 1, "num_steps": 2, "batch_size": 256},
    "validation": {"fraction": 0.004, "min_per_class": 5},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="A run over data of ImageNet's shape.")
    parser.add_argument("--examples", type=int, default=1_280_000)
    parser.add_argument("--shards", type=int, default=128)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--without-plan", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made_up:
        folder = arguments.folder or Path(made_up)
        took = Taken()
        with took("make the shards"):
            make_shards(folder, arguments.examples, arguments.shards)
        source = f"webdataset:{folder}"
        if not arguments.without_plan:
            with took("lipt plan, which makes the index"):
                print(plan(source), flush=True)
        run(source, took)


def plan(source: str) -> str:
    settings = [f"--set={name}" for name in _flat(RUN) if not name.startswith("model=")]
    told = subprocess.run(
        [
            *(sys.executable, "-m", "lipt.cli", "plan", "--data", source),
            *("--model", MODEL, "--strategy", "craig", "--fraction", "0.1", *settings),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    return told.stdout


def run(source: str, took: Taken) -> None:
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        with took("start a coordinator"):
            coordinator = cluster.launch_coordinator("--data", source, "--model", MODEL)
            while "lipt-coordinator on" not in coordinator.text():
                time.sleep(0.5)
            cluster.address = coordinator.wait_for(r"lipt-coordinator on (\S+)")[1]
        worker = cluster.start_worker("one", "--worker-data", source)
        with cluster.client() as client:
            with took("shard, ship, train, merge"):
                view = client.wait(client.start_run(dict(RUN)).run_id)
            for strategy in STRATEGIES:
                with took(f"{strategy}: score where nothing is kept, select, serve"):
                    subset = client.subset(strategy=strategy, fraction=0.1)
                print(f"{strategy}: {len(subset):,} examples", flush=True)
        fetching = took(f"{NUM_TRAINERS} trainers fetch that subset at once")
        with fetching, ThreadPoolExecutor(NUM_TRAINERS) as threads:
            list(threads.map(lambda _: fetched(cluster), range(NUM_TRAINERS)))
        processes = {
            "coordinator": coordinator.process.pid,
            **{f"its compute process {pid}": pid for pid in coordinator.children()},
            "worker": worker.process.pid,
        }
        took.show({name: peak_bytes(pid) for name, pid in processes.items()})
        print(json.dumps(asdict(view.costs)) if view.costs else "")
        print(next(line for line in coordinator.text().splitlines() if "ranges, " in line))
        print(f"state directory: {_size(cluster.state) / 1e9:.2f} GB")


def fetched(cluster: Cluster) -> int:
    with cluster.client() as client:
        return len(client.subset(strategy=STRATEGIES[-1], fraction=0.1))


def peak_bytes(pid: int) -> int:
    """The most that a process ever held, mapped files included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def make_shards(folder: Path, num_examples: int, num_shards: int) -> None:
    """Images whose colours follow from their class, and noise that does not."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [range(shard, num_examples, num_shards) for shard in range(num_shards)]
    paths = [folder / f"train-{number:06d}.tar" for number in range(num_shards)]
    missing = [(path, part) for path, part in zip(paths, parts, strict=True) if not path.exists()]
    with ProcessPoolExecutor() as processes:
        list(processes.map(make_shard, *zip(*missing, strict=True)) if missing else ())


def make_shard(path: Path, examples: range) -> None:
    partial_path = path.with_suffix(".part")
    with tarfile.open(partial_path, "w") as tar:
        add = partial(_add, tar)
        for example in examples:
            label = example % NUM_CLASSES
            add(f"{example:08d}.jpg", picture(example, label))
            add(f"{example:08d}.cls", str(label).encode())
    partial_path.rename(path)


def picture(example: int, label: int) -> bytes:
    noise, colours = np.random.default_rng(example), np.random.default_rng(-1 - label + 2**32)
    blocks = colours.integers(0, 256, (4, 4, 3)) + noise.integers(-40, 40, (4, 4, 3))
    pixels = np.clip(blocks, 0, 255).astype(np.uint8).repeat(SIZE // 4, 0).repeat(SIZE // 4, 1)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=80)
    return content.getvalue()


class Taken:
    """Table of the steps' times."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._seconds[step] = time.monotonic() - began
        print(f"{step}: {self._seconds[step]:.1f} s", flush=True)

    def show(self, memory: dict[str, int]) -> None:
        table = Table("", "")
        for step, seconds in self._seconds.items():
            table.add_row(step, f"{seconds:.1f} s")
        for process, num_bytes in memory.items():
            table.add_row(f"{process}, at the most", f"{num_bytes / 1e9:.2f} GB")
        Console(width=100).print(table)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _flat(settings: dict[str, object], path: str = "") -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}={value}"


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
