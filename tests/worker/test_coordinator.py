from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from lipt.common.blobs.messages import blob_from_proto, blob_to_proto
from lipt.common.blobs.name import BlobName
from lipt.common.config.learner_task import LearnerTask
from lipt.common.config.messages import task_to_proto
from lipt.common.config.run_config import AugmentationConfig, LearnersConfig, PruningMethod
from lipt.common.errors import ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.common.rpc.channel import open_channel
from lipt.v1 import worker_pb2, worker_pb2_grpc
from lipt.worker.coordinator import Coordinator, Report

TASK = LearnerTask(
    model="resnet8",
    num_classes=2,
    image=ImageFormat(1, 8, 8, mean=(0.5,), std=(0.5,)),
    learners=LearnersConfig(),
    augmentation=AugmentationConfig(),
    pruning_method=PruningMethod.NONE,
    density=1.0,
    seed=3,
)


class Fake(worker_pb2_grpc.WorkerServiceServicer):
    """Hands out one assignment, and keeps what is given back."""

    def __init__(self) -> None:
        self.assignment = worker_pb2.Assignment(
            assignment_id="r/0",
            run_id="r",
            lease=worker_pb2.Lease(epoch=7, duration_seconds=30.0, heartbeat_seconds=10.0),
            initial_weights=blob_to_proto(BlobName.of(b"weights")),
            shard=blob_to_proto(BlobName.of(b"shard")),
            task=task_to_proto(TASK),
        )
        self.released: list[worker_pb2.ReleaseAssignmentRequest] = []
        self.committed: list[worker_pb2.CommitResultRequest] = []

    def AcquireAssignment(self, request: Any, context: Any) -> Any:
        return worker_pb2.AcquireAssignmentResponse(assignment=self.assignment)

    def CommitResult(self, request: Any, context: Any) -> Any:
        self.committed.append(request)
        return worker_pb2.CommitResultResponse()

    def ReleaseAssignment(self, request: Any, context: Any) -> Any:
        self.released.append(request)
        return worker_pb2.ReleaseAssignmentResponse()


@pytest.fixture
def served() -> Iterator[tuple[Fake, Coordinator]]:
    fake = Fake()  # pyright: ignore[reportAbstractUsage] - the rest stays unimplemented
    server = grpc.server(ThreadPoolExecutor(2))
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open_channel(f"127.0.0.1:{port}") as channel:
        yield fake, Coordinator(channel)
    server.stop(None).wait()


def test_assignment_arrives_as_it_was_given(served: tuple[Fake, Coordinator]) -> None:
    assignment = served[1].acquire("w")
    assert assignment is not None
    assert (assignment.assignment_id, assignment.epoch) == ("r/0", 7)
    assert assignment.task == TASK


def test_assignment_of_a_newer_version_is_given_back_with_the_reason(
    served: tuple[Fake, Coordinator],
) -> None:
    fake, coordinator = served
    fake.assignment.task.pruning_method = 99  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="pruning_method = '99'"):
        coordinator.acquire("w")
    (released,) = fake.released
    assert (released.assignment_id, released.epoch) == ("r/0", 7)
    assert "pruning_method = '99'" in released.error


def test_interrupted_worker_asks_no_more(served: tuple[Fake, Coordinator]) -> None:
    coordinator = served[1]
    coordinator.interrupt()
    assert coordinator.acquire("w") is None


class Poll:
    """A long poll that is never answered."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def result(self) -> None:
        assert self.cancelled, "nobody will end this poll"
        raise grpc.FutureCancelledError


def test_signal_while_a_poll_is_being_made_ends_that_poll(
    served: tuple[Fake, Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = served[1]

    def future(*_: Any, **__: Any) -> Poll:
        coordinator.interrupt()  # what the handler of a signal does
        return Poll()

    monkeypatch.setattr(coordinator._stub.AcquireAssignment, "future", future)
    assert coordinator.acquire("w") is None


def test_result_goes_out_with_its_snapshots_in_order(served: tuple[Fake, Coordinator]) -> None:
    fake, coordinator = served
    assignment = coordinator.acquire("w")
    assert assignment is not None
    early, late, result = (BlobName.of(content) for content in (b"1", b"2", b"3"))
    coordinator.commit("w", assignment, result, Report(1.0, 2.0, 3.0, 4), [early, late])
    (committed,) = fake.committed
    assert blob_from_proto(committed.result) == result
    assert [blob_from_proto(blob) for blob in committed.snapshots] == [early, late]
