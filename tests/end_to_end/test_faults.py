from __future__ import annotations

import os
import signal
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from lipt.common.errors import (
    IncompatibleProtocolError,
    StaleLeaseError,
)
from lipt.common.rpc.channel import open_channel
from lipt.common.rpc.status import from_rpc_error
from lipt.common.states import RunState
from lipt.v1 import worker_pb2, worker_pb2_grpc
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.stub_worker import StubWorker


def test_worker_gives_its_learner_back_when_it_is_told_to_stop(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    cluster.start_coordinator()
    # So long that only giving it back can end it.
    learners = {"num_learners": 1, "num_steps": 100_000, "batch_size": 64}
    with cluster.client() as client, open_channel(cluster.address) as channel:
        client.start_run({**small_run, "learners": learners})
        leaving = cluster.start_worker("leaving")
        leaving.wait_for("density")
        heir = StubWorker(cluster.directory, channel, "heir")
        assert leaving.stop() == 0
        assignment = heir.take()
        heir.submit(assignment, heir.learner(assignment))
        final = client.wait()
    assert final.state is RunState.READY, final.message
    assert final.learners[0].attempts == 2
    assert "gave" in leaving.text()


def test_killed_worker_s_learner_goes_to_another_after_the_lease(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    cluster.start_coordinator(*cluster.leases_of(1.0))
    learners = {"num_learners": 1, "num_steps": 100_000, "batch_size": 64}
    with cluster.client() as client, open_channel(cluster.address) as channel:
        run = client.start_run({**small_run, "learners": learners})
        doomed = cluster.start_worker("doomed")
        doomed.wait_for("density")
        doomed.stop(signal.SIGKILL)
        heir = StubWorker(cluster.directory, channel, "heir")
        assignment = heir.take()
        assert assignment.epoch == 2
        heir.submit(assignment, heir.learner(assignment))
        assert client.wait(run.run_id).state is RunState.READY


def test_zombie_s_late_commit_is_refused_as_stale(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    cluster.start_coordinator(*cluster.leases_of(1.0))
    learners = {"num_learners": 1, "num_steps": 1, "batch_size": 32}
    with cluster.client() as client, open_channel(cluster.address) as channel:
        run = client.start_run({**small_run, "learners": learners})
        zombie = StubWorker(cluster.directory, channel, "zombie")
        old = zombie.take()
        weights = zombie.learner(old)
        heir = StubWorker(cluster.directory, channel, "heir")
        new = heir.take()  # comes when the zombie's lease has ended
        with pytest.raises(StaleLeaseError, match="not used"):
            zombie.submit(old, {name: tensor * 2 for name, tensor in weights.items()})
        heir.submit(new, weights)
        final = client.wait(run.run_id)
    assert final.learners[0].worker == "heir"


def test_killed_coordinator_goes_on_where_it_was(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    undisturbed = cluster.start_coordinator()
    worker = cluster.start_worker("one")
    with cluster.client() as client:
        expected = client.wait(client.start_run(small_run).run_id)
        expected_subset = client.subset(expected.run_id, "grand", fraction=0.1)
    undisturbed.stop()
    worker.stop()

    flags = ("--state-dir", str(cluster.directory / "state-2"))
    coordinator = cluster.start_coordinator(*flags)
    worker = cluster.start_worker("two")
    with cluster.client() as client:
        run = client.start_run(small_run)
        coordinator.wait_for(r"learner \S+ of worker two is in")
        coordinator.stop(signal.SIGKILL)
        cluster.start_coordinator(*flags, listen=cluster.address)
        worker.wait_for("joining again|joined")
        final = client.wait(run.run_id)
        assert final.state is RunState.READY, final.message
        assert final.pretrained_weights == expected.pretrained_weights
        subset = client.subset(run.run_id, "grand", fraction=0.1)
        assert subset.digest == expected_subset.digest


def test_worker_that_was_first_joins_when_the_coordinator_comes_up(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator()
    coordinator.stop()
    worker = cluster.start_worker("early")
    worker.wait_for("Trying again until")
    cluster.start_coordinator(listen=cluster.address).wait_for("worker early .* joined")
    assert worker.stop() == 0


def test_control_calls_are_answered_while_the_compute_process_stands_still(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    coordinator = cluster.start_coordinator()
    pids = coordinator.children()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        with cluster.client() as client, open_channel(cluster.address) as channel:
            run = client.start_run(small_run)
            StubWorker(cluster.directory, channel, "w")
            assert client.run(run.run_id).state in (RunState.PENDING, RunState.INITIALIZING)
            assert [worker.name for worker in client.info().workers] == ["w"]
            assert client.cancel(run.run_id).state is RunState.CANCELLED
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_health_turns_not_serving_before_the_service_ends(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator()
    with open_channel(cluster.address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        coordinator.process.send_signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
    assert coordinator.wait() == 0


def test_reflection_lists_the_contract(cluster: Cluster) -> None:
    cluster.start_coordinator()
    with open_channel(cluster.address) as channel:
        services = ProtoReflectionDescriptorDatabase(channel).get_services()
    names = ("Blob", "Info", "Run", "Subset", "Worker")
    assert {f"lipt.v1.{name}Service" for name in names} < set(services)


def test_second_coordinator_on_the_same_state_is_refused(cluster: Cluster) -> None:
    cluster.start_coordinator()
    second = cluster.start(
        "second",
        [
            *("-m", "lipt.coordinator", "--data", "digits", "--model", "resnet8"),
            *("--listen", "127.0.0.1:0", "--state-dir", str(cluster.directory / "state")),
        ],
    )
    assert second.wait() == 1
    assert f"serving {cluster.address}" in second.text()


def test_worker_of_another_protocol_is_refused(cluster: Cluster) -> None:
    cluster.start_coordinator()
    request = worker_pb2.RegisterRequest(
        instance_id="x", protocol=worker_pb2.ProtocolVersion(major=2, minor=0)
    )
    with open_channel(cluster.address) as channel, pytest.raises(grpc.RpcError) as caught:
        worker_pb2_grpc.WorkerServiceStub(channel).Register(request, timeout=30)
    error = from_rpc_error(caught.value)
    assert isinstance(error, IncompatibleProtocolError)
    assert "2.0" in str(error)
    assert "same lipt" in str(error)
