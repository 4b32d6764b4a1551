import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from lipt.common.access.tokens import WORKER_SECRET
from lipt.common.backoff import RetryLevels
from lipt.common.blobs.blob import BlobName, blob_from_proto, blob_to_proto
from lipt.common.config.values import dump
from lipt.common.errors import (
    ConfigError,
    LiptError,
    StaleLeaseError,
    TooManyCallsError,
    UnknownRunError,
    UnreachableError,
)
from lipt.common.observability.logs import EventKind, Events
from lipt.common.process.devices import versions_on
from lipt.common.rpc.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR, fill_message
from lipt.common.states import DivergedQuantity, Divergence
from lipt.v1 import worker_pb2, worker_pb2_grpc
from lipt.worker.client import CoordinatorClient, LeaseKeeper
from lipt.worker.settings import WorkerSettings
from tests.worker.fake_client import TASK, FakeClient, make_assignment, serving


class Fake(worker_pb2_grpc.WorkerServiceServicer):
    def __init__(self) -> None:
        self.assignment = worker_pb2.Assignment(
            assignment_id="r/0",
            run_id="r",
            lease=worker_pb2.Lease(epoch=7, duration_seconds=30.0, heartbeat_seconds=10.0),
            initial_weights=blob_to_proto(BlobName.of(b"weights")),
            shard=blob_to_proto(BlobName.of(b"shard")),
            task=fill_message(worker_pb2.LearnerTask(), dump(TASK)),
        )
        self.registered: list[worker_pb2.RegisterRequest] = []
        self.beats: list[worker_pb2.HeartbeatRequest] = []
        self.secrets: list[str | None] = []
        self.stop = False
        self.released: list[worker_pb2.ReleaseAssignmentRequest] = []
        self.committed: list[worker_pb2.CommitResultRequest] = []

    def Register(self, request: Any, context: Any) -> Any:
        self.registered.append(request)
        return worker_pb2.RegisterResponse(worker_id="w")

    def Heartbeat(self, request: Any, context: Any) -> Any:
        self.beats.append(request)
        self.secrets.append(dict(context.invocation_metadata()).get(WORKER_SECRET))
        return worker_pb2.HeartbeatResponse(stop=self.stop)

    def AcquireAssignment(self, request: Any, context: Any) -> Any:
        return worker_pb2.AcquireAssignmentResponse(assignment=self.assignment)

    def CommitResult(self, request: Any, context: Any) -> Any:
        self.committed.append(request)
        return worker_pb2.CommitResultResponse()

    def ReleaseAssignment(self, request: Any, context: Any) -> Any:
        self.released.append(request)
        return worker_pb2.ReleaseAssignmentResponse()


Served = tuple[Fake, CoordinatorClient]


@pytest.fixture
def served() -> Iterator[Served]:
    fake = Fake()  # pyright: ignore[reportAbstractUsage] - the rest stays unimplemented
    with serving(fake) as channel:
        yield fake, CoordinatorClient(channel)


def test_a_worker_registers_and_authenticates_later_calls(served: Served) -> None:
    fake, client = served
    assignment = client.acquire()
    assert assignment is not None
    client.heartbeat(assignment, worker_pb2.LearnerProgress())
    secret = "s" * 32
    settings = WorkerSettings(name="one", allow_modules=("mine",))
    client.register(secret, settings, torch.device("cpu"))
    assert client.worker_id == "w"
    (request,) = fake.registered
    assert (request.instance_id, request.name, request.device) == (secret, "one", "cpu")
    assert (request.protocol.major, request.protocol.minor) == (PROTOCOL_MAJOR, PROTOCOL_MINOR)
    assert dict(request.versions) == versions_on(torch.device("cpu"))
    assert list(request.allowed_modules) == ["mine"]
    client.heartbeat(assignment, worker_pb2.LearnerProgress())
    assert fake.secrets == [None, secret]


@pytest.mark.parametrize("stop", [False, True])
def test_heartbeats_carry_progress_and_commits_snapshots(served: Served, stop: bool) -> None:
    fake, client = served
    fake.stop = stop
    assignment = client.acquire()
    assert assignment is not None
    progress = worker_pb2.LearnerProgress(step=3, num_steps=10)
    assert client.heartbeat(assignment, progress) is stop
    (beat,) = fake.beats
    assert (beat.assignment_id, beat.epoch) == ("r/0", 7)
    assert beat.progress == progress
    early, late, result = (BlobName.of(content) for content in (b"1", b"2", b"3"))
    client.commit(assignment, [early, late, result], worker_pb2.LearnerReport(loss=1.0))
    (committed,) = fake.committed
    assert blob_from_proto(committed.result) == result
    assert [blob_from_proto(blob) for blob in committed.snapshots] == [early, late]


def test_an_assignment_of_a_newer_version_is_returned_with_the_reason(served: Served) -> None:
    fake, client = served
    fake.assignment.task.pruning_method = 99  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="pruning_method = '99'"):
        client.acquire()
    (released,) = fake.released
    assert (released.assignment_id, released.epoch) == ("r/0", 7)
    assert "pruning_method = '99'" in released.error
    assert not released.HasField("divergence")


def test_a_release_carries_a_divergence(served: Served) -> None:
    fake, client = served
    divergence = Divergence(DivergedQuantity.GRADIENT, 4, 9)
    client.release("r/0", 7, "it diverged.", divergence=divergence)
    (released,) = fake.released
    assert released.divergence == worker_pb2.Divergence(
        quantity=worker_pb2.DIVERGED_QUANTITY_GRADIENT, step=4, num_steps=9
    )


class Poll:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def result(self) -> None:
        assert self.cancelled, "nobody will end this poll"
        raise grpc.FutureCancelledError


def test_a_signal_ends_a_poll(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    client = served[1]

    def future(*_: Any, **__: Any) -> Poll:
        client.polls.interrupt()  # what the handler of a signal does
        return Poll()

    monkeypatch.setattr(client._stub.AcquireAssignment, "future", future)
    assert client.acquire() is None


# Far more than any machine needs: it is waited so long only by a test that fails.
PATIENCE_SECONDS = 60.0
OFTEN = 0.01
TRAINING = worker_pb2.LEARNER_PHASE_TRAINING


class Kept:
    def __init__(self, directory: Path, heartbeat_seconds: float, *errors: Exception) -> None:
        self.fake, self.events = FakeClient(directory), Events()
        self.fake.refusals["heartbeat"] = list(errors)
        assignment = make_assignment(heartbeat_seconds=heartbeat_seconds)
        self.lease = LeaseKeeper(self.fake.client, assignment, self.events, RetryLevels())

    def next_beat(self) -> worker_pb2.LearnerProgress:
        return self.fake.beats.get(timeout=PATIENCE_SECONDS)


def test_a_new_phase_is_reported_at_once(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 3600.0)
    with kept.lease as lease:
        kept.next_beat()
        lease.report(TRAINING, 1, 0.5)
        said = worker_pb2.LearnerProgress(phase=TRAINING, step=1, num_steps=2, loss=0.5)
        assert kept.next_beat() == said


@pytest.mark.parametrize("error", [StaleLeaseError("somebody else's."), UnknownRunError("gone.")])
def test_a_lost_lease_ends_heartbeats(tmp_path: Path, error: LiptError) -> None:
    kept = Kept(tmp_path, OFTEN, error)
    with kept.lease as lease:
        lease._thread.join(PATIENCE_SECONDS)
        assert not lease._thread.is_alive()
    assert lease.lost.is_set()
    assert kept.fake.beats.qsize() == 1
    assert kept.events.count(EventKind.RETRIED) == 0


def test_an_unreachable_coordinator_does_not_end_the_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    away = UnreachableError("away.")
    kept = Kept(tmp_path, OFTEN, away, away, LiptError("internal error"))
    with caplog.at_level(logging.INFO), kept.lease as lease:
        for _ in range(5):
            kept.next_beat()
        assert not lease.lost.is_set()
    assert kept.events.count(EventKind.RETRIED, "heartbeat") == 3
    # Each of the two kinds is a warning once, and so is that it is over.
    assert [line.levelno for line in caplog.records] == [logging.WARNING] * 2 + [logging.INFO]
    assert caplog.records[-1].getMessage() == "the coordinator answers again"


def test_a_rate_limited_heartbeat_waits_as_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    kept = Kept(tmp_path, OFTEN, TooManyCallsError("slowly.", retry_after_seconds=2.5))
    monkeypatch.setattr(kept.lease._left, "wait", pauses.append)
    with kept.lease:
        for _ in range(2):
            kept.next_beat()
    assert pauses == [2.5]
