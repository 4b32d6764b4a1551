"""Clients that stop reading, uploads and commits at once: others are answered in bounded memory."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier
from time import perf_counter

import grpc
import pytest

from lipt.common.blobs.blob import BlobName, blob_to_proto
from lipt.common.blobs.transfer import Transfers
from lipt.common.rpc.channel import open_channel
from lipt.common.states import LearnerState
from lipt.v1 import blob_pb2, info_pb2, info_pb2_grpc
from lipt.v1.blob_pb2_grpc import BlobServiceStub
from tests.blob_files import blob_file
from tests.cluster import Cluster
from tests.faults.conftest import Record
from tests.faults.memory import reset_peak, resident_bytes

BLOB_BYTES = 45_000_000
MAX_STREAM_BYTES = 8_000_000
MAX_UPLOADS_BYTES = 300_000_000
NUM_LEARNERS = 10
LONG = [pytest.mark.faults, pytest.mark.timeout(600)]
# One connection each: streams of one connection share its window.
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 2**22))


def content(seed: int) -> bytes:
    return random.Random(seed).randbytes(BLOB_BYTES)


def percentile(seconds: list[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


def control_calls(address: str, num: int) -> list[float]:
    """How long each of some calls took, one after another."""
    seconds = []
    with open_channel(address) as channel:
        stub = info_pb2_grpc.InfoServiceStub(channel)
        for _ in range(num):
            started = perf_counter()
            stub.GetInfo(info_pb2.GetInfoRequest(), timeout=60)
            seconds.append(perf_counter() - started)
    return seconds


@pytest.mark.parametrize(
    ("num_readers", "p99_seconds"), [(20, 10.0), pytest.param(100, 0.25, marks=LONG)]
)
def test_clients_that_stop_reading_cost_little_and_keep_nobody_waiting(
    cluster: Cluster, num_readers: int, p99_seconds: float, record: Record
) -> None:
    coordinator = cluster.start_coordinator("--insecure")
    pid = coordinator.process.pid
    data = content(1)
    with open_channel(cluster.address) as channel:
        name = Transfers(BlobServiceStub(channel)).upload(data)
    control_calls(cluster.address, 10)
    before = resident_bytes(pid)
    with ExitStack() as stack:
        stalled = []
        for _ in range(num_readers):
            reader = stack.enter_context(grpc.insecure_channel(cluster.address, options=OPTIONS))
            call = BlobServiceStub(reader).ReadBlob(
                blob_pb2.ReadBlobRequest(blob=blob_to_proto(name))
            )
            assert next(call).chunk.data  # it has begun, and is not read on
            stalled.append(call)
        seconds = control_calls(cluster.address, 200)
        growth = (resident_bytes(pid) - before) / num_readers
        p99 = percentile(seconds, 0.99)
        record(f"p99 {1000 * p99:.1f} ms, {growth / 1e6:.2f} MB per stream")
        # They were not sent the whole blob.
        assert all(call.is_active() for call in stalled)
        assert growth < MAX_STREAM_BYTES
        assert p99 < p99_seconds


@pytest.mark.parametrize("num_uploads", [3, pytest.param(10, marks=LONG)])
def test_memory_stays_bounded_while_blobs_are_uploaded_at_once(
    cluster: Cluster, num_uploads: int, record: Record
) -> None:
    coordinator = cluster.start_coordinator("--insecure")
    pid = coordinator.process.pid
    with ThreadPoolExecutor(num_uploads) as pool, open_channel(cluster.address) as channel:
        blobs = list(map(content, range(num_uploads)))
        Transfers(BlobServiceStub(channel)).upload(b"warm")
        reset_peak(pid)
        before = resident_bytes(pid)

        def send(data: bytes) -> BlobName:
            with grpc.insecure_channel(cluster.address, options=OPTIONS) as own:
                return Transfers(BlobServiceStub(own)).upload(data)

        names = list(pool.map(send, blobs))
        growth = resident_bytes(pid, peak=True) - before
        record(f"{growth / 1e6:.0f} MB more at the peak")
        store = cluster.state
        for name, data in zip(names, blobs, strict=True):
            assert blob_file(store, name.sha256).read_bytes() == data
    assert growth < MAX_UPLOADS_BYTES


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_memory_stays_bounded_while_ten_large_learners_are_committed_at_once(
    cluster: Cluster, record: Record
) -> None:
    # Nobody sends heartbeats while ten learners are made on a busy machine.
    coordinator = cluster.start_coordinator("--model", "resnet18", *cluster.leases_of(900.0))
    pid = coordinator.process.pid
    together = Barrier(NUM_LEARNERS, action=lambda: reset_peak(pid))

    def work(number: int) -> int:
        worker = cluster.play_worker(f"worker-{number}")
        assignment = worker.take()
        result = worker.upload(worker.learner(assignment, factor=1.0 + number / 100))
        together.wait()
        before = resident_bytes(pid)
        worker.commit(assignment, result)
        return before

    learners = {"num_learners": NUM_LEARNERS + 1, "batch_size": 16}
    with ExitStack() as stack:
        client = stack.enter_context(cluster.client())
        run = client.start_run({"learners": learners})
        pool = stack.enter_context(ThreadPoolExecutor(NUM_LEARNERS))
        before = min(pool.map(work, range(NUM_LEARNERS)))
        growth = resident_bytes(pid, peak=True) - before
        states = [learner.state for learner in client.run(run.run_id).learners]
    record(f"{growth / 1e6:.0f} MB more at the peak")
    assert states.count(LearnerState.DONE) == NUM_LEARNERS
    assert growth < MAX_UPLOADS_BYTES
