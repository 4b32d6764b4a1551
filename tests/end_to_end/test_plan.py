"""`lipt plan` against what then happens, at three sizes: bytes and memory, counted beforehand."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

import pytest

from tests import processes
from tests.cluster import Cluster
from tests.faults.memory import resident_bytes

MODULE = """
import torch

class Made:
    classes = tuple("abcde")
    def __init__(self, number, side):
        generator = torch.Generator().manual_seed(number)
        self.labels = torch.arange(number) % 5
        shape = (number, 3, side, side)
        self.images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, row):
        return self.images[row], int(self.labels[row])

def small(): return Made(400, 8)
def medium(): return Made(3_000, 16)
def large(): return Made(12_000, 32)
"""


class Size(NamedTuple):
    data: str
    learners: dict[str, Any]
    strategy: str
    fraction: float


SIZES = [
    Size("small", {"num_learners": 2, "num_steps": 1, "batch_size": 16}, "grand", 0.1),
    Size("medium", {"num_learners": 4, "num_steps": 2, "batch_size": 128}, "gradmatch", 0.05),
    Size(
        *("large", {"num_learners": 3, "num_steps": 1, "num_minibatches": 2, "batch_size": 512}),
        *("craig", 0.1),
    ),
]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size.data)
def test_bytes_and_memory_are_within_a_factor_of_two_of_the_plan(
    cluster: Cluster, size: Size
) -> None:
    (cluster.directory / "sized.py").write_text(MODULE)
    environment = {"PYTHONPATH": str(cluster.directory)}
    source = f"sized:{size.data}"
    planned = plan(size, source, environment)
    coordinator = cluster.start_coordinator(
        *("--data", source, "--device", "cpu", "--allow-module", "sized"), environment=environment
    )
    worker = cluster.start_worker("w", environment=environment)
    with cluster.client() as client:
        settings = {"model": "resnet8", "learners": size.learners, "soup": {"num_alphas": 2}}
        run = client.wait(client.start_run(settings).run_id)
        costs = run.costs
        assert costs is not None
        blobs = (cluster.state / "blobs").rglob("*")
        stored = sum(path.stat().st_size for path in blobs if path.is_file())
        client.subset(run.run_id, size.strategy, fraction=size.fraction)
        computing = max(resident_bytes(child, peak=True) for child in coordinator.computing())
        training = resident_bytes(worker.process.pid, peak=True)

    assert planned["bytes_to_workers"] == pytest.approx(costs.bytes_to_workers, rel=0.1)
    # Told as if nothing was pruned: at most 15% of the weights are.
    assert costs.bytes_from_workers <= planned["bytes_from_workers"]
    assert planned["bytes_from_workers"] <= 1.25 * costs.bytes_from_workers
    # Besides, each file has a header.
    assert stored <= 1.05 * planned["run_disk_bytes"] <= 1.25 * stored
    [kept] = (cluster.state / "signals").glob("signals-*")
    assert planned["signals_bytes"] == pytest.approx(kept.stat().st_size, rel=0.1)
    for process, happened in (("compute", computing), ("worker", training)):
        stages = (stage for stage in planned["stages"] if stage["process"] == process)
        told = max(stage["memory_bytes"] for stage in stages)
        assert happened / 2 <= told <= happened * 2


def plan(size: Size, source: str, environment: dict[str, str]) -> Any:
    words = ["plan", "--data", source, "--model", "resnet8", "--device", "cpu", "--no-measure"]
    words += ["--strategy", size.strategy, "--fraction", str(size.fraction), "--json"]
    for name, value in size.learners.items():
        words += ["--set", f"learners.{name}={value}"]
    words += ["--set", "soup.num_alphas=2"]
    done = processes.run(["-m", "lipt.trainer.cli", *words], os.environ | environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
