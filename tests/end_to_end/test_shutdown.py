"""SIGTERM to the coordinator and to workers, in the moments that are not the easy ones."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lipt.common.rpc.channel import open_channel
from lipt.common.weights.files import pack
from lipt.v1 import blob_pb2, blob_pb2_grpc
from tests.cluster import Cluster, LoggedProcess

# What a service manager gives a process before it kills it.
GRACE_SECONDS = 30.0
LONG_RUN = {"num_learners": 1, "num_steps": 100_000, "batch_size": 64}


def ends_in_time(process: LoggedProcess) -> int:
    """The exit status after SIGTERM; a process that takes longer is a failure."""
    process.send(signal.SIGTERM)
    return process.process.wait(GRACE_SECONDS)


def test_coordinator_with_stalled_readers_polls_and_watchers_ends_in_time(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
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
        run = client.start_run({**small_run, "learners": LONG_RUN})
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


def test_worker_whose_coordinator_does_not_answer_ends_in_time(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    # A long lease has long heartbeats, which must not hold a worker up.
    coordinator = cluster.start_coordinator(*cluster.leases_of(3600.0))
    with cluster.client() as client:
        client.start_run({**small_run, "learners": LONG_RUN})
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
