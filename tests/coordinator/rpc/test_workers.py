import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lipt.common.blobs.blob import BlobName, blob_to_proto
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import LearnersConfig, PruningConfig, PruningMethod, RunConfig
from lipt.common.errors import (
    ForeignWorkerError,
    IncompatibleProtocolError,
    InvalidRequestError,
    LearnerRejectedError,
    StaleLeaseError,
    UnknownBlobError,
    UnknownWorkerError,
)
from lipt.common.states import LearnerState
from lipt.common.tensor_files import pack
from lipt.coordinator.access.caller import worker_id_of
from lipt.coordinator.dispatch.intake import Intake
from lipt.coordinator.rpc.workers import WorkerService, unless
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import FailureReason, LearnerRecord
from lipt.core.pretraining.results import CommittedLearner
from lipt.models.encodings import encode_sparse
from lipt.v1 import worker_pb2 as pb
from tests.coordinator.dispatch.conftest import Bench
from tests.coordinator.fakes import DATA
from tests.coordinator.made_up_runs import made_up_run
from tests.coordinator.state.conftest import stored_runs


def context(*secrets: str) -> Any:
    metadata = tuple(("lipt-worker-secret", secret) for secret in secrets)
    return SimpleNamespace(invocation_metadata=lambda: metadata)


SECRET = "s" * 32
CONTEXT = context(SECRET)
THETA = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}


class Served(Bench):
    """One worker, and one run whose learners send in two snapshots."""

    def __init__(self, directory: Path, database: Database) -> None:
        super().__init__(database)
        self.blobs = BlobStore(directory, max_blob_bytes=10_000)
        intake = Intake(self.dispatcher, self.blobs, directory / "scans")
        self.service = WorkerService(self.dispatcher, intake, DATA, asyncio.Event())
        self.worker_id = ""

    async def begin(self, pruning_method: PruningMethod = PruningMethod.NONE) -> None:
        learners = LearnersConfig(num_learners=3, num_steps=10, num_snapshots=2, max_attempts=1)
        initial = self.blobs.put_bytes(pack(THETA))
        pruning = PruningConfig(method=pruning_method)
        config = RunConfig(model="resnet8", learners=learners, pruning=pruning)
        await self.store.add(made_up_run().changed(config=config, initial_weights=initial))
        registered = await self.service.Register(
            pb.RegisterRequest(
                instance_id=SECRET,
                name="one",
                protocol=pb.ProtocolVersion(major=1, minor=0),
                device="cpu",
                versions={"lipt": "0.1.0"},
            ),
            CONTEXT,
        )
        self.worker_id = registered.worker_id
        await self.poll()

    async def poll(self) -> None:
        await self.service.AcquireAssignment(
            pb.AcquireAssignmentRequest(worker_id=self.worker_id), CONTEXT
        )

    def put(self, *values: float) -> BlobName:
        content = encode_sparse({"w": torch.tensor(values, dtype=torch.float32).reshape(2, -1)})
        upload = self.blobs.open_upload(BlobName.of(content), 0)
        upload.write(content)
        name = upload.finish()
        upload.close()
        return name

    async def commit(
        self, result: BlobName, snapshots: Sequence[BlobName], learner: int = 0
    ) -> None:
        request = pb.CommitResultRequest(
            worker_id=self.worker_id,
            assignment_id=f"r/{learner}",
            epoch=1,
            result=blob_to_proto(result),
            snapshots=map(blob_to_proto, snapshots),
        )
        await self.service.CommitResult(request, CONTEXT)

    @property
    def learner(self) -> LearnerRecord:
        return self.store.find("r").learners[0]


@pytest.fixture
async def bench(tmp_path: Path, database: Database) -> Served:
    bench = Served(tmp_path, database)
    await bench.begin()
    return bench


async def test_snapshots_are_kept_in_order_and_counted_as_traffic(bench: Served) -> None:
    early, late = bench.put(0, 0, 0, 1), bench.put(1, 2, 3, 4)
    result = bench.put(0, 2, 3, 4)
    await bench.commit(result, [early, late])
    # Again, without its files: what is in is not checked again.
    await bench.commit(result, [])
    run = bench.store.find("r")
    assert run.outcome.learners == (CommittedLearner(0, (early, late), result),)
    assert run.all_costs["bytes_from_workers"] == sum(b.size_bytes for b in (early, late, result))
    (loaded,) = await stored_runs(bench.database)
    assert loaded.outcome == run.outcome


FOREIGN_END = [(0, 0, 0, 1), (1, 2, 3, 3.5)]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([], "num_snapshots is 2"),
        ([(0, 0, 0, 0)], "num_snapshots is 2"),
        ([(0, 0, 0, 0)] * 3, "num_snapshots is 2"),
        (FOREIGN_END, "last snapshot is not its result before pruning"),
    ],
    ids=["none", "one", "three", "end"],
)
async def test_learner_without_its_snapshots_is_refused_and_the_attempt_counted(
    bench: Served, sent: list[tuple[float, ...]], words: str
) -> None:
    snapshots = [bench.put(*values) for values in sent]
    with pytest.raises(LearnerRejectedError, match=rf"{words}.*Install the coordinator"):
        await bench.commit(bench.put(1, 2, 3, 4), snapshots)
    assert bench.learner.state is LearnerState.FAILED
    assert bench.learner.result is None


async def test_a_learner_of_another_density_than_its_assignment_s_is_refused(
    tmp_path: Path, database: Database
) -> None:
    bench = Served(tmp_path, database)
    await bench.begin(PruningMethod.MAGNITUDE)
    # One of four weights is kept; 0.9 keeps three or four.
    assert bench.learner.density == 0.9
    snapshots = [bench.put(0, 0, 0, 1), bench.put(1, 2, 3, 4)]
    with pytest.raises(LearnerRejectedError, match="density"):
        await bench.commit(bench.put(0, 0, 0, 4), snapshots)
    assert bench.learner.state is LearnerState.FAILED


@pytest.mark.parametrize(
    ("quantity", "reason", "account"),
    [
        (pb.DIVERGED_QUANTITY_LOSS, FailureReason.DIVERGED, "loss not finite after step 2 of 3"),
        (pb.DIVERGED_QUANTITY_UNSPECIFIED, FailureReason.ERROR, "on one: nan"),
        (99, FailureReason.ERROR, "on one: nan"),
    ],
)
async def test_a_released_learner_is_recorded_with_its_reason(
    bench: Served, quantity: Any, reason: FailureReason, account: str
) -> None:
    request = pb.ReleaseAssignmentRequest(
        worker_id=bench.worker_id,
        assignment_id="r/0",
        epoch=1,
        error="nan",
        divergence=pb.Divergence(quantity=quantity, step=2, num_steps=3),
    )
    await bench.service.ReleaseAssignment(request, CONTEXT)
    assert [failure.reason for failure in bench.learner.latest_failures] == [reason]
    assert bench.learner.account.endswith(account)
    (loaded,) = await stored_runs(bench.database)
    assert loaded.learners[0] == bench.learner


async def test_a_damaged_upload_does_not_count_against_the_worker(bench: Served) -> None:
    early, result = bench.put(0, 0, 0, 1), bench.put(0, 2, 3, 4)
    # As it arrives it is compared with its digest, and for the first check not once more.
    late = bench.put(1, 2, 3, 4)
    path = bench.blobs.path(late)
    changed = path.read_bytes()
    # Another value, and still a file that can be read.
    at = changed.rindex(struct.pack("<f", 4.0))
    path.write_bytes(changed[:at] + struct.pack("<f", 4.5) + changed[at + 4 :])
    with pytest.raises(UnknownBlobError):
        await bench.commit(result, [early, late])
    assert bench.learner.state is LearnerState.LEASED
    # So that it can be sent again.
    assert not bench.blobs.has(late)


async def test_a_worker_secret_identifies_before_registration(bench: Served) -> None:
    service: Any = bench.service
    register = pb.RegisterRequest(instance_id=SECRET, protocol=pb.ProtocolVersion(major=1))
    worker_id = (await service.Register(register, CONTEXT)).worker_id
    asking = pb.AcquireAssignmentRequest(worker_id=worker_id)
    await service.AcquireAssignment(asking, CONTEXT)
    held = {"worker_id": worker_id, "assignment_id": "r/0", "epoch": 1}
    for other in (context(), context(SECRET.upper())):
        for call, request in (
            (service.AcquireAssignment, asking),
            (service.CommitResult, pb.CommitResultRequest(**held)),
            (service.Heartbeat, pb.HeartbeatRequest(**held)),
            (service.ReleaseAssignment, pb.ReleaseAssignmentRequest(**held)),
        ):
            with pytest.raises(ForeignWorkerError, match=f"worker id {worker_id} does not show"):
                await call(request, other)
    assert bench.learner.state is LearnerState.LEASED
    # As after a restart: a heartbeat needs no Register first, and no stranger gets through.
    stranger = "t" * 32
    beat = pb.HeartbeatRequest(worker_id=worker_id_of(stranger), assignment_id="r/0", epoch=1)
    with pytest.raises(StaleLeaseError):
        await service.Heartbeat(beat, context(stranger))
    with pytest.raises(UnknownWorkerError):
        await service.Heartbeat(beat, CONTEXT)


async def test_worker_of_another_protocol_or_with_a_weak_secret_is_refused(bench: Served) -> None:
    protocol = pb.ProtocolVersion(major=2, minor=7)
    request = pb.RegisterRequest(instance_id=SECRET, name="new", protocol=protocol)
    with pytest.raises(IncompatibleProtocolError, match=r"protocol 2\.7, this coordinator 1\."):
        await bench.service.Register(request, CONTEXT)
    for secret in ("box-3", "f" * 31):
        register = pb.RegisterRequest(instance_id=secret, protocol=pb.ProtocolVersion(major=1))
        words = f"instance_id has {len(secret)} characters.*draw at least 32"
        with pytest.raises(InvalidRequestError, match=words) as caught:
            await bench.service.Register(register, CONTEXT)
        assert secret not in str(caught.value)


async def test_demand_counts_queued_and_leased_learners(bench: Served) -> None:
    answer = await bench.service.GetDemand(pb.GetDemandRequest(), CONTEXT)
    assert answer == pb.GetDemandResponse(num_queued=2, num_leased=1)
    known = pb.GetDemandRequest(known=answer, wait_seconds=0.01)
    assert await bench.service.GetDemand(known, CONTEXT) == answer
    with pytest.raises(InvalidRequestError, match=r"wait_seconds 61.0 is outside 0..60"):
        await bench.service.GetDemand(pb.GetDemandRequest(wait_seconds=61.0), CONTEXT)


@pytest.mark.parametrize("by", ["stop", "caller"])
async def test_a_cancelled_job_has_ended_before_its_caller_continues(by: str) -> None:
    stop, begun, cleaned_up = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.set()

    waiting = asyncio.ensure_future(unless(stop, work()))
    await begun.wait()
    if by == "stop":
        stop.set()
        assert await waiting is None
    else:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert cleaned_up.is_set()
