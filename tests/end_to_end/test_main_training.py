"""`lipt train` as a process that is killed: it goes on to the same weights."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import equal

from lipt.common.data import open_dataset
from tests.cluster import Cluster, LoggedProcess
from tests.trainer.made_up import made_up_subset

# A model with all that a checkpoint has to carry, which stops where a test tells it to.
STOPPING = """
import os
import threading
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.calls = 0
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten()
        )
        self.head = nn.Linear(288, num_classes)

    def forward(self, images):
        self.calls += self.training
        if self.calls == int(os.environ.get("STOP_AT", "-1")):
            print("stopped here", flush=True)
            threading.Event().wait()
        return self.head(self.layers(images))

def net(*, num_classes):
    return Net(num_classes)
"""


def start_training(cluster: Cluster, name: str, *flags: str, **environment: str) -> LoggedProcess:
    arguments = ["-m", "lipt.trainer.cli", "train", "--device", "cpu", "--json"]
    arguments += ["--log", str(cluster.directory / f"{name}.jsonl")]
    arguments += ["--out", str(cluster.directory / f"{name}.safetensors")]
    return cluster.start(name, [*arguments, *flags], environment)


def log_of(cluster: Cluster, name: str) -> list[dict[str, object]]:
    lines = (cluster.directory / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def same_weights(cluster: Cluster, one: str, other: str) -> bool:
    first, second = (load_file(cluster.directory / f"{name}.safetensors") for name in (one, other))
    return first.keys() == second.keys() and all(equal(first[k], second[k]) for k in first)


@pytest.fixture
def subset_file(tmp_path: Path) -> Path:
    fingerprint = open_dataset("digits-train").fingerprint
    subset = made_up_subset(range(40), [1.0, 3.0] * 20, fingerprint=fingerprint)
    return subset.save(tmp_path / "subset.json")


def test_training_that_is_killed_ends_in_the_same_weights(
    cluster: Cluster, subset_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "stopping.py").write_text(STOPPING)
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    flags = ("--data", "digits-train", "--subset", str(subset_file), "--epochs", "6")
    flags += ("--model", "stopping:net", "--allow-module", "stopping", "--set", "batch_size=16")
    undisturbed = start_training(cluster, "undisturbed", *flags, **environment)

    # Three batches per epoch: the eleventh is in the middle of the fourth.
    flags += ("--checkpoint", str(tmp_path / "c.safetensors"), "--checkpoint-seconds", "0")
    killed = start_training(cluster, "killed", *flags, **environment, STOP_AT="11")
    assert undisturbed.wait() == 0, undisturbed.text()
    killed.wait_for("stopped here")
    assert killed.stop(signal.SIGKILL) == -signal.SIGKILL
    assert [record["epoch"] for record in log_of(cluster, "killed")] == [1, 2, 3]
    assert not (tmp_path / "killed.safetensors").exists()

    resumed = start_training(cluster, "resumed", *flags, **environment)
    assert resumed.wait() == 0, resumed.text()
    assert "c.safetensors: training goes on after step 9 of 18, epoch 3, " in resumed.text()
    assert "training goes on" not in undisturbed.text()
    assert [record["epoch"] for record in log_of(cluster, "resumed")] == [4, 5, 6]
    assert same_weights(cluster, "undisturbed", "resumed")
