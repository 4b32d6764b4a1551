from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from lipt.common.blobs.name import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.blobs.transfer import download, upload
from lipt.common.errors import (
    IncompatibleProtocolError,
    LearnerRejectedError,
    RunFailedError,
    StaleLeaseError,
)
from lipt.common.rpc.channel import open_channel
from lipt.common.rpc.status import from_rpc_error
from lipt.common.weights.files import read_specs, read_weights
from lipt.common.weights.sparse import encode_sparse
from lipt.trainer.views import RunState
from lipt.v1 import worker_pb2, worker_pb2_grpc
from lipt.worker.coordinator import Assignment, Coordinator, Report
from tests.end_to_end.cluster import Cluster

REPORT = Report(loss=1.0, train_seconds=1.0, total_seconds=1.0, bytes_received=0)


class TestWorker:
    """A worker that the test plays itself, over real gRPC."""

    __test__ = False

    def __init__(self, cluster: Cluster, channel: grpc.Channel, name: str) -> None:
        self.coordinator = Coordinator(channel)
        self.worker_id = self.coordinator.register(
            name, name=name, device="cpu", versions={}, allowed_modules=()
        )
        self._store = BlobStore(cluster.directory / f"cache-{name}", max_blob_bytes=2**30)

    def take(self) -> Assignment:
        while (assignment := self.coordinator.acquire(self.worker_id)) is None:
            pass
        return assignment

    def initial_weights(self, assignment: Assignment) -> dict[str, torch.Tensor]:
        path = download(self.coordinator.blobs, assignment.initial_weights, self._store)
        return read_weights(path, like=read_specs(path), max_bytes=2**30)

    def submit(self, assignment: Assignment, weights: dict[str, torch.Tensor]) -> None:
        name: BlobName = upload(self.coordinator.blobs, encode_sparse(weights))
        self.coordinator.commit(self.worker_id, assignment, name, REPORT)


@pytest.mark.parametrize("how", ["nan", "shape", "name"])
def test_bad_learner_is_refused_and_done_again_by_another_worker(
    cluster: Cluster, small_run: dict[str, Any], how: str
) -> None:
    cluster.start_coordinator()
    with cluster.client() as client, open_channel(cluster.address) as channel:
        run = client.start_run(small_run)
        liar = TestWorker(cluster, channel, "liar")
        assignment = liar.take()
        weights = liar.initial_weights(assignment)
        name = next(name for name in weights if weights[name].ndim == 4)
        if how == "nan":
            weights[name] = torch.full_like(weights[name], float("nan"))
        elif how == "shape":
            weights[name] = weights[name][:1]
        else:
            weights[f"{name}.other"] = weights.pop(name)
        with pytest.raises(LearnerRejectedError, match=name):
            liar.submit(assignment, weights)
        cluster.start_worker("honest")
        final = client.wait(run.run_id)
    assert final.state is RunState.READY, final.message
    learner = final.learners[assignment.learner_index]
    assert (learner.worker, learner.attempts) == ("honest", 2)


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
        heir = TestWorker(cluster, channel, "heir")
        assert leaving.stop() == 0
        assignment = heir.take()
        heir.submit(assignment, heir.initial_weights(assignment))
        final = client.wait()
    assert final.state is RunState.READY, final.message
    assert final.learners[0].attempts == 2
    assert "gave" in leaving.text()


def test_killed_worker_s_learner_goes_to_another_after_the_lease(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    config = cluster.directory / "run.toml"
    config.write_text("[lease]\nduration_seconds = 1.0\n")
    cluster.start_coordinator("--config", str(config))
    learners = {"num_learners": 1, "num_steps": 100_000, "batch_size": 64}
    with cluster.client() as client, open_channel(cluster.address) as channel:
        run = client.start_run({**small_run, "learners": learners})
        doomed = cluster.start_worker("doomed")
        doomed.wait_for("density")
        doomed.stop(signal.SIGKILL)
        heir = TestWorker(cluster, channel, "heir")
        assignment = heir.take()
        assert assignment.epoch == 2
        heir.submit(assignment, heir.initial_weights(assignment))
        assert client.wait(run.run_id).state is RunState.READY


def test_zombie_s_late_commit_is_refused_as_stale(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    config = cluster.directory / "run.toml"
    config.write_text("[lease]\nduration_seconds = 1.0\n")
    cluster.start_coordinator("--config", str(config))
    learners = {"num_learners": 1, "num_steps": 1, "batch_size": 32}
    with cluster.client() as client, open_channel(cluster.address) as channel:
        run = client.start_run({**small_run, "learners": learners})
        zombie = TestWorker(cluster, channel, "zombie")
        old = zombie.take()
        weights = zombie.initial_weights(old)
        heir = TestWorker(cluster, channel, "heir")
        new = heir.take()  # comes when the zombie's lease has ended
        with pytest.raises(StaleLeaseError, match="not used"):
            zombie.submit(old, {name: tensor * 2 for name, tensor in weights.items()})
        heir.submit(new, weights)
        final = client.wait(run.run_id)
    assert final.learners[0].worker == "heir"


def test_run_closes_at_its_deadline_with_the_learners_that_are_in(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    cluster.start_coordinator()
    learners = {"num_learners": 2, "num_steps": 1, "batch_size": 32, "deadline_seconds": 2.0}
    with cluster.client() as client, open_channel(cluster.address) as channel:
        run = client.start_run({**small_run, "learners": learners})
        slow, quick = (TestWorker(cluster, channel, name) for name in ("slow", "quick"))
        never = slow.take()
        done = quick.take()
        quick.submit(done, quick.initial_weights(done))
        final = client.wait(run.run_id)
        assert final.state is RunState.READY, final.message
        states = [learner.state.value for learner in final.learners]
        assert states == ["dropped", "done"]
        assert "deadline of 2 s" in final.learners[0].message
        progress = worker_pb2.LearnerProgress()
        assert slow.coordinator.heartbeat(slow.worker_id, never, progress) is True


def test_run_that_gets_too_few_learners_fails_and_names_the_missing(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    cluster.start_coordinator()
    learners = {"num_learners": 2, "num_steps": 1, "batch_size": 32, "deadline_seconds": 1.0}
    with cluster.client() as client, open_channel(cluster.address) as channel:
        run = client.start_run({**small_run, "learners": {**learners, "min_learners": 2}})
        TestWorker(cluster, channel, "slow").take()
        with pytest.raises(RunFailedError, match=r"learner 0 \(at worker slow\)"):
            client.wait(run.run_id)


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
    children = Path(f"/proc/{coordinator.process.pid}/task/{coordinator.process.pid}/children")
    pids = [int(pid) for pid in children.read_text().split()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        with cluster.client() as client, open_channel(cluster.address) as channel:
            run = client.start_run(small_run)
            TestWorker(cluster, channel, "w")
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
