"""Passes over the data that workers share: alone, with one worker, and up to a thousand.

Three parts, in one run:

- A real coordinator and no worker, then one, then two, on the same run's model: how long the pass
  takes, and whether the subset is the same to the bit. The coordinator computes as well.
- What a range costs the coordinator: its file is read, checked and stored, of ImageNet's shape.
- 1 to 1,000 workers, simulated: the real table of ranges, workers that take as long for a range as
  the argument says, and a coordinator that takes one range after the other, each as measured.

    python -m benchmarks.shared_passes [--data cifar10:DIR] [--worker-seconds 40]

Without --data it is cifar10-jpeg in ../shared. Data of fewer than two ranges are not shared.
"""

from __future__ import annotations

import argparse
import heapq
import re
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from lipt.common.blobs.blob import BlobName
from lipt.common.config.tasks import ScoringTask
from lipt.common.images.formats import ImageFormat
from lipt.common.signals.passes import encode_range, read_range
from lipt.coordinator.compute.scan import RangeFolder, Scan
from tests.cluster import SMALL_RUN, Cluster

DATA = "parquet:../shared/data/cifar10-jpeg/train.parquet"
CONFIG = """
[compute]
scoring_range = 2048
scoring_workers = "same"
"""
RUN = {
    **SMALL_RUN,
    "evaluation_threads": 1,
    "learners": {"num_learners": 1, "num_steps": 1, "batch_size": 32, "num_minibatches": 1},
}
# 1.28 million examples of 1,000 classes and 512 features.
IMAGENET = Scan(
    ScoringTask(
        model="resnet18",
        num_classes=1000,
        image=ImageFormat(3, 224, 224, mean=(0.5,) * 3, std=(0.25,) * 3),
        fingerprint="0" * 64,
        start=0,
        stop=1_281_167,
        batch_size=256,
        threads=1,
        half_errors=True,
        half_features=True,
    ),
    BlobName.of(b"theta_p"),
    num_features=512,
    range_examples=4096,
    kind="",
    lipt="",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Passes over the data that workers share.")
    parser.add_argument("--data", default=DATA)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--worker-seconds", type=float, default=40.0, help="of a worker's range")
    arguments = parser.parse_args()
    console = Console(width=100)
    data, image_size = arguments.data, arguments.image_size
    console.print(together(data, image_size, arguments.rounds))
    file_seconds, num_bytes = cost_of_a_range()
    console.print(
        f"a range of {IMAGENET.range_examples:,} examples: {num_bytes / 1e6:.1f} MB, "
        f"{file_seconds:.2f} s of the coordinator's"
    )
    console.print(simulated(arguments.worker_seconds, file_seconds))


def together(data: str, image_size: int, rounds: int) -> Table:
    table = Table("workers", "seconds", "ranges by workers", "times quicker", "digest")
    alone = 0.0
    for num_workers in (0, 1, 2):
        taken = [pass_with(num_workers, data, image_size) for _ in range(rounds)]
        seconds = statistics.median(seconds for seconds, _, _ in taken)
        alone = alone or seconds
        _, shared, digest = taken[-1]
        table.add_row(
            str(num_workers), f"{seconds:.1f}", shared, f"{alone / seconds:.2f}", digest[:12]
        )
    return table


def pass_with(num_workers: int, data: str, image_size: int) -> tuple[float, str, str]:
    """The seconds of a pass, which ranges workers did, and the subset's digest.

    Of the second pass: for their first one, workers open the data.
    """
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        of_data = f'[dataset]\nsource = "{data}"\nimage_size = {image_size}'
        config = cluster.config(f"{CONFIG}{of_data}")
        coordinator = cluster.start_coordinator("--data", data, *config)
        blind = cluster.start_worker("trains")
        with cluster.client() as client:
            runs = [client.start_run({**RUN, "seed": seed}).run_id for seed in range(2)]
            for run in runs:
                client.wait(run)
            blind.stop()
            for number in range(num_workers):
                cluster.start_worker(f"w{number}", "--worker-data", data).wait_for("joined")
            first, second = (
                client.subset(run=run, strategy="grand", fraction=0.1).digest for run in runs
            )
            assert first != second
        told = re.findall(
            r"signals of \d+ examples in ([\d.]+) s: of (\d+) ranges, (\d+)", coordinator.text()
        )
        seconds, num_ranges, shared = told[-1]
        return float(seconds), f"{shared} of {num_ranges}", second


def cost_of_a_range() -> tuple[float, int]:
    """Seconds that the coordinator reads, checks and stores a range's file in; its bytes."""
    task, generator = IMAGENET.task(0), torch.Generator().manual_seed(0)
    logits = torch.randn(len(task), 1000, generator=generator) * 3
    labels = torch.randint(0, 1000, (len(task),), generator=generator)
    errors = logits.softmax(dim=1)
    errors[torch.arange(len(task)), labels] -= 1
    features = torch.randn(len(task), 512, generator=generator).relu()
    content = encode_range({"errors": errors.half(), "features": features.half()})
    times = []
    with tempfile.TemporaryDirectory() as folder:
        ranges = RangeFolder(Path(folder), IMAGENET.scan_id)
        ranges.open()
        for index in range(5):
            began = time.perf_counter()
            BlobName.of(content)
            read_range(content, task, IMAGENET.num_features)
            ranges.keep(index, "worker", content)
            times.append(time.perf_counter() - began)
    return statistics.median(times), len(content)


def simulated(worker_seconds: float, file_seconds: float) -> Table:
    """How long the pass takes with many workers."""
    table = Table("workers", "range", "seconds", "times quicker than one", "per worker")
    one = {}
    for range_examples in (4096, 512):
        share = range_examples / IMAGENET.range_examples
        scan = replace(IMAGENET, range_examples=range_examples)
        for num_workers in (1, 2, 10, 100, 1000):
            seconds = makespan(scan, num_workers, worker_seconds * share, file_seconds * share)
            one.setdefault(range_examples, seconds)
            quicker = one[range_examples] / seconds
            table.add_row(
                str(num_workers),
                str(range_examples),
                f"{seconds:,.0f}",
                f"{quicker:.1f}",
                f"{quicker / num_workers:.0%}",
            )
    return table


def makespan(scan: Scan, num_workers: int, worker_seconds: float, file_seconds: float) -> float:
    """When the last range is in; the coordinator itself does none here."""
    free_at, num_given = 0.0, 0
    # When a worker asks, and whether it hands in a range.
    events = [(0.0, False)] * num_workers
    while events:
        now, hands_in = heapq.heappop(events)
        if hands_in:
            free_at = now = max(free_at, now) + file_seconds
        if num_given < scan.num_ranges:
            num_given += 1
            heapq.heappush(events, (now + worker_seconds, True))
    return free_at


if __name__ == "__main__":
    main()
