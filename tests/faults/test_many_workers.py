"""A thousand workers, and a thousand uploads that are not finished: all are served."""

import asyncio
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest
from safetensors.torch import load_file

from lipt.common.access.tokens import WORKER_SECRET
from lipt.common.blobs.blob import BlobName, blob_from_proto, blob_to_proto, fill_chunk
from lipt.common.rpc.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR
from lipt.common.states import LearnerState
from lipt.common.tensor_files import Weights
from lipt.coordinator.state.maintenance import check_state
from lipt.models.encodings import encode_sparse
from lipt.v1 import blob_pb2, blob_pb2_grpc, worker_pb2, worker_pb2_grpc
from tests.blob_files import blob_file
from tests.cluster import Cluster
from tests.coordinator.state.conftest import KEPT, SPARE, StateBench, state
from tests.faults.conftest import Record
from tests.played_worker import pruned

_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
_CALL_SECONDS, _POLL_SECONDS = 120.0, 30.0

ResultT = TypeVar("ResultT")


class Swarm:
    """Workers that take and submit learners; `latencies` are of each call but long polls."""

    def __init__(self, address: str, store: Path, *, num_workers: int) -> None:
        self.latencies: dict[str, list[float]] = defaultdict(list)
        self.committed: Counter[int] = Counter()
        self._address = address
        self._store = store
        self._num_workers = num_workers
        self._initial: dict[BlobName, Weights] = {}
        self._all_registered = asyncio.Barrier(num_workers)
        self._handed_in = asyncio.Event()

    async def work(self, runs: list[int], start: Callable[[int], object]) -> None:
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            tasks = []
            for number in range(self._num_workers):
                secret = f"{number:032x}"
                channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
                await stack.enter_async_context(channel)
                tasks.append(group.create_task(self._work(number, secret, channel)))
            wanted = 0
            for num_learners in runs:
                wanted += num_learners
                await asyncio.to_thread(start, num_learners)
                while self.committed.total() < wanted:
                    self._handed_in.clear()
                    await self._handed_in.wait()
            for task in tasks:
                task.cancel()

    async def _work(self, number: int, secret: str, channel: grpc.aio.Channel) -> None:
        workers: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        blobs: Any = blob_pb2_grpc.BlobServiceStub(channel)
        request = worker_pb2.RegisterRequest(
            instance_id=secret,
            name=f"worker-{number}",
            protocol=worker_pb2.ProtocolVersion(major=PROTOCOL_MAJOR, minor=PROTOCOL_MINOR),
            device="cpu",
            allowed_modules=["tests.tiny"],
        )
        shown = {"metadata": ((WORKER_SECRET, secret),), "timeout": _CALL_SECONDS + _POLL_SECONDS}
        registered = await self._timed("Register", workers.Register(request, **shown))
        await self._all_registered.wait()
        poll = worker_pb2.AcquireAssignmentRequest(
            worker_id=registered.worker_id, wait_seconds=_POLL_SECONDS
        )
        while True:
            answer = await workers.AcquireAssignment(poll, **shown)
            if answer.HasField("assignment"):
                await self._train(registered.worker_id, answer.assignment, workers, blobs, shown)
                self.committed[number] += 1
                self._handed_in.set()

    async def _train(
        self, worker_id: str, assignment: Any, workers: Any, blobs: Any, shown: dict[str, Any]
    ) -> None:
        held = {
            "worker_id": worker_id,
            "assignment_id": assignment.assignment_id,
            "epoch": assignment.lease.epoch,
        }
        for phase in (worker_pb2.LEARNER_PHASE_TRAINING, worker_pb2.LEARNER_PHASE_SUBMITTING):
            progress = worker_pb2.LearnerProgress(phase=phase)
            beat = worker_pb2.HeartbeatRequest(**held, progress=progress)
            await self._timed("Heartbeat", workers.Heartbeat(beat, **shown))
        content = self._learner(assignment)
        write = blob_pb2.WriteBlobRequest(blob=blob_to_proto(BlobName.of(content)))
        fill_chunk(write.chunk, 0, content)
        stored = await self._timed("WriteBlob", blobs.WriteBlob(iter([write]), **shown))
        commit = worker_pb2.CommitResultRequest(**held, result=stored.blob)
        await self._timed("CommitResult", workers.CommitResult(commit, **shown))

    def _learner(self, assignment: Any) -> bytes:
        name = blob_from_proto(assignment.initial_weights)
        if name not in self._initial:
            path = blob_file(self._store, name.sha256)
            self._initial[name] = load_file(path)
        initial = self._initial[name]
        # No two learners are equal.
        factor = 1.0 + assignment.learner_index / 1e4
        return encode_sparse(pruned(initial, assignment.task.density, factor))

    async def _timed(self, name: str, call: Awaitable[ResultT]) -> ResultT:
        started = perf_counter()
        result = await call
        self.latencies[name].append(perf_counter() - started)
        return result


# Calls that do no work; with one that takes longer than is between two heartbeats, leases go.
PROMPT = {"Register", "Heartbeat"}
HEARTBEAT_SECONDS = 10.0
RUN = {
    "learners": {"num_steps": 1, "num_minibatches": 1, "batch_size": 1},
    "soup": {"method": "uniform", "reestimate_batch_norm": False},
}


@pytest.mark.parametrize(
    "num_workers", [48, pytest.param(1000, marks=[pytest.mark.faults, pytest.mark.timeout(1200)])]
)
def test_every_worker_is_served_and_every_learner_comes_in(
    cluster: Cluster, num_workers: int, record: Record
) -> None:
    # Everybody at once; then few at a time, while all others wait for their turn.
    sizes = [num_workers, *[num_workers // 4] * 4]
    cluster.start_coordinator("--insecure", "--model", "tests.tiny:linear")
    runs: list[str] = []
    swarm = Swarm(cluster.address, cluster.state, num_workers=num_workers)
    with cluster.client() as client:

        def start(num_learners: int) -> None:
            learners = {**RUN["learners"], "num_learners": num_learners}
            runs.append(client.start_run({**RUN, "learners": learners}).run_id)

        asyncio.run(swarm.work(sizes, start))
        learners = [learner for run in runs for learner in client.run(run).learners]
    assert [learner.state for learner in learners] == [LearnerState.DONE] * sum(sizes)
    assert [learner.attempts for learner in learners] == [1] * sum(sizes)  # no lease was lost
    counts = [swarm.committed[number] for number in range(num_workers)]
    for name, seconds in sorted(swarm.latencies.items()):
        seconds.sort()
        p50, p99 = (1000 * seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99))
        record(f"{name}: {len(seconds)} calls, median {p50:.1f} ms, p99 {p99:.1f} ms")
        assert name not in PROMPT or p99 <= 1000 * HEARTBEAT_SECONDS, name
    record(f"learners per worker: {min(counts)} to {max(counts)}")
    # Two each, where whoever has waited longest is served first; a poll's end costs a turn.
    assert min(counts) >= 1
    assert max(counts) <= 3


__all__ = ["state"]

OLD = SPARE[:4]


def test_coordinator_killed_in_the_midst_of_removing_loses_nothing(
    cluster: Cluster, state: StateBench
) -> None:
    assert cluster.state == state.directory
    for path in (*state.directory.glob("blobs/*/*"),):
        os.utime(path, (1000.0, 1000.0))
    flags = cluster.config("[storage]\ncollect_every_seconds = 0.2\n")
    program = ("-m", "tests.faults.dying_coordinator", "removal", "4", "--")
    dying = cluster.launch_coordinator(*flags, program=program)
    assert dying.wait() == -signal.SIGKILL
    # Three were removed before that; not one of those that records need.
    assert len([text for text in OLD if state.has(text)]) > 0
    assert [text for text in KEPT if not state.has(text)] == []
    assert check_state(state.directory).problems == ()
    coordinator = cluster.start_coordinator(*flags)
    coordinator.wait_for(r"event=expired detail=blobs files=5 ")
    assert [text for text in OLD if state.has(text)] == []
    assert [text for text in KEPT if not state.has(text)] == []
    assert coordinator.stop() == 0
    assert check_state(state.directory).problems == ()
