"""Processes that are told to end in moments that are not the easy ones, or killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from safetensors.torch import load_file
from torch import equal

from lipt.common.data import open_dataset
from lipt.common.rpc.channel import open_channel
from lipt.common.states import RunState
from lipt.common.weights.files import pack
from lipt.trainer import Client, Subset
from lipt.trainer.views import ProgressView
from lipt.v1 import blob_pb2, blob_pb2_grpc
from tests.cluster import SMALL_RUN, Cluster, LoggedProcess
from tests.trainer.made_up import made_up_subset

# What a service manager gives a process before it kills it.
GRACE_SECONDS = 30.0
LONG_RUN = {"num_learners": 1, "num_steps": 100_000, "batch_size": 64}


def ends_in_time(process: LoggedProcess) -> int:
    process.send(signal.SIGTERM)
    return process.process.wait(GRACE_SECONDS)


def test_coordinator_with_stalled_readers_polls_and_watchers_ends_in_time(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator(*cluster.config("drain_seconds = 2.0\n"))
    polling = cluster.start_worker("polling")
    polling.wait_for("joined")
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(cluster.client())
        path = cluster.directory / "large.safetensors"
        path.write_bytes(pack({"w": torch.zeros(8_000_000)}))
        name = client.upload_weights(path)
        large = blob_pb2.BlobRef(sha256=name.sha256, size_bytes=name.size_bytes)
        channel = stack.enter_context(open_channel(cluster.address))
        stub: Any = blob_pb2_grpc.BlobServiceStub(channel)
        stalled = [stub.ReadBlob(blob_pb2.ReadBlobRequest(blob=large)) for _ in range(5)]
        for reader in stalled:
            next(reader)
        run = client.start_run({**SMALL_RUN, "learners": LONG_RUN})
        watch = client.watch(run.run_id)
        next(iter(watch))
        watching = open_channel(cluster.address)
        stack.enter_context(watching)
        health: Any = health_pb2_grpc.HealthStub(watching)
        states = health.Watch(health_pb2.HealthCheckRequest())
        assert next(states).status == health_pb2.HealthCheckResponse.SERVING
        coordinator.send(signal.SIGTERM)
        # At once: while the readers are still being waited for.
        assert next(states).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert coordinator.process.poll() is None
        assert coordinator.process.wait(GRACE_SECONDS) == 0
        for reader in stalled:
            with pytest.raises(grpc.RpcError):
                for _ in reader:
                    pass
    assert "Traceback" not in coordinator.text()
    assert ends_in_time(polling) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("imported", ["typer", "grpc", "torch"])
@pytest.mark.parametrize("service", ["coordinator", "worker"])
def test_service_that_is_still_importing_ends_with_status_0(
    cluster: Cluster, service: str, imported: str, number: int
) -> None:
    # The interpreter says what it has imported, before it goes on with the next.
    arguments = ["-X", "importtime", "-m", f"lipt.{service}"]
    if service == "coordinator":
        arguments += ["--state-dir", str(cluster.directory), "--data", "digits"]
    process = cluster.start(service, arguments)
    process.wait_for(rf"\| +{imported}$")
    assert process.stop(number) == 0
    assert f"lipt-{service}: stopped while it was starting" in process.text()
    assert "Traceback" not in process.text()
    assert not (cluster.directory / "lipt.db").exists()


def test_worker_whose_coordinator_does_not_answer_ends_in_time(cluster: Cluster) -> None:
    # A long lease has long heartbeats, which must not hold a worker up.
    coordinator = cluster.start_coordinator(*cluster.leases_of(3600.0))
    with cluster.client() as client:
        client.start_run({**SMALL_RUN, "learners": LONG_RUN})
        training = cluster.start_worker("training")
        training.wait_for("density")
        polling = cluster.start_worker("polling")
        polling.wait_for("joined")
        coordinator.send(signal.SIGSTOP)
        try:
            for worker in (polling, training):
                worker.send(signal.SIGTERM)
            assert [it.process.wait(GRACE_SECONDS) for it in (polling, training)] == [0, 0]
        finally:
            coordinator.send(signal.SIGCONT)


# Full batches of the digits' training split.
STEPS_PER_EPOCH = 6


def begin(client: Client) -> None:
    client.start_run({**SMALL_RUN, "seed": 5}, name="alone")
    next(view for view in client.watch("alone") if view.state is RunState.TRAINING)


class Killer:
    """Kills a coordinator once, in the midst of a warm-up, and starts another in its place."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinator: LoggedProcess | None = cluster.start_coordinator()
        # The steps that were told by the second one.
        self.steps: list[int] = []

    def __call__(self, view: ProgressView) -> None:
        if view.activity != "warming up model":
            return
        if self._coordinator is None:
            self.steps.append(view.done)
        elif view.done > STEPS_PER_EPOCH:
            self._coordinator.stop(signal.SIGKILL)
            self._coordinator = None
            self._cluster.start_coordinator("--listen", self._cluster.address)


def test_a_coordinator_killed_in_a_warm_up_chooses_the_same_afterwards(tmp_path: Path) -> None:
    def choose(cluster: Cluster, on_progress: Callable[[ProgressView], None] | None) -> Subset:
        with cluster.client() as client:
            begin(client)
            options = {"pretraining": "epochs:8"}
            return client.subset(
                "alone", "grand", budget=50, options=options, on_progress=on_progress
            )

    (tmp_path / "killed").mkdir()
    with Cluster(tmp_path / "killed") as cluster:
        killer = Killer(cluster)
        found = choose(cluster, killer)
    with Cluster(tmp_path) as cluster:
        cluster.start_coordinator()
        assert choose(cluster, None).digest == found.digest
    # It went on at an epoch's end, and did not begin again.
    assert min(killer.steps) > STEPS_PER_EPOCH


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
