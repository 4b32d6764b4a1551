"""SIGKILL while many workers hand in at once: what was acknowledged is there, by the group."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import grpc
import pytest

from lipt.common.access.tokens import WORKER_SECRET
from lipt.common.blobs.blob import BlobName, blob_to_proto
from lipt.common.states import LearnerState
from lipt.coordinator.state.maintenance import read_records
from lipt.coordinator.state.records import RunRecord
from lipt.v1 import worker_pb2, worker_pb2_grpc
from lipt.worker.client import Assignment
from tests.cluster import SMALL_RUN, Cluster
from tests.faults.conftest import Record
from tests.played_worker import PlayedWorker

NUM_WORKERS = 16
# Nobody sends heartbeats.
LEASE_SECONDS = 3600.0
Prepared = tuple[PlayedWorker, Assignment, BlobName]


def done_on_disk(cluster: Cluster) -> set[int]:
    (run,) = (it for it in read_records(cluster.state, []) if isinstance(it, RunRecord))
    return {it.index for it in run.learners if it.state is LearnerState.DONE}


def is_acknowledged(cluster: Cluster, prepared: Prepared, together: Barrier) -> bool:
    """Hand in once, without trying again."""
    worker, assignment, result = prepared
    request = worker_pb2.CommitResultRequest(
        worker_id=worker.worker_id,
        assignment_id=assignment.assignment_id,
        epoch=assignment.epoch,
        result=blob_to_proto(result),
    )
    options = (("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
    with grpc.insecure_channel(cluster.address, options) as channel:
        grpc.channel_ready_future(channel).result()
        together.wait()
        with suppress(grpc.RpcError):
            worker_pb2_grpc.WorkerServiceStub(channel).CommitResult(
                request, metadata=((WORKER_SECRET, worker.secret),), timeout=300.0
            )
            return True
    return False


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [pytest.param("result", marks=pytest.mark.faults), "recorded"])
def test_each_of_many_results_that_was_acknowledged_at_once_outlives_the_coordinator(
    cluster: Cluster, kind: str, record: Record
) -> None:
    # At the second transaction with results, before or after its COMMIT.
    dying = ["-m", "tests.faults.dying_coordinator", kind, "2", "--"]
    flags = ("--insecure", *cluster.leases_of(LEASE_SECONDS))
    # While the disk takes the first of them, others come.
    slow = {"COMMIT_SECONDS": "1"}
    coordinator = cluster.start_coordinator(*flags, program=dying, environment=slow)
    learners = {**SMALL_RUN["learners"], "num_learners": NUM_WORKERS + 1, "num_steps": 1}  # type: ignore[dict-item]
    with cluster.client() as client:
        run_id = client.start_run({**SMALL_RUN, "learners": learners}).run_id

    def prepare(number: int) -> Prepared:
        worker = cluster.play_worker(f"worker-{number}")
        assignment = worker.take()
        return worker, assignment, worker.upload(worker.learner(assignment, 1.0 + number / 1e4))

    together = Barrier(NUM_WORKERS)
    with ThreadPoolExecutor(NUM_WORKERS) as pool:
        all_prepared = list(pool.map(prepare, range(NUM_WORKERS)))
        answers = list(pool.map(lambda it: is_acknowledged(cluster, it, together), all_prepared))
    assert coordinator.wait() == -signal.SIGKILL
    indices = [assignment.learner_index for _, assignment, _ in all_prepared]
    acknowledged = {index for index, answer in zip(indices, answers, strict=True) if answer}
    on_disk = done_on_disk(cluster)
    record(f"{kind}: {len(acknowledged)} acknowledged, {len(on_disk)} on the disk")
    assert acknowledged <= on_disk
    # What is on the disk and was not acknowledged is the second transaction, as a whole.
    assert (acknowledged < on_disk) is (kind == "recorded")

    cluster.start_coordinator(*flags, "--listen", cluster.address)
    for worker, assignment, result in all_prepared:
        worker.commit(assignment, result)
    assert done_on_disk(cluster) == set(indices)
    with cluster.client() as client:
        attempts = [it.attempts for it in client.run(run_id).learners if it.index in indices]
    assert attempts == [1] * NUM_WORKERS
