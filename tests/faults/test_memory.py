import ctypes
import gc
import random
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier
from time import perf_counter

import grpc
import pytest
import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import blob_to_proto
from lipt.common.blobs.transfer import Transfers
from lipt.common.rpc.channel import open_channel
from lipt.common.states import LearnerState
from lipt.common.tensor_files import Weights, specs_of
from lipt.core.pretraining.evaluation import Evaluator, Scored
from lipt.core.pretraining.soup import greedy_soup, weighted_soup
from lipt.data.inputs.specs import ImageFormat
from lipt.data.targets.values import SingleLabel
from lipt.models.encodings import encode_sparse, open_weights
from lipt.v1 import blob_pb2, info_pb2, info_pb2_grpc
from lipt.v1.blob_pb2_grpc import BlobServiceStub
from tests.cluster import Cluster
from tests.faults.conftest import Record
from tests.faults.memory import reset_peak, resident_bytes
from tests.one_by_one import one_by_one

BLOB_BYTES = 45_000_000
MAX_STREAM_BYTES = 8_000_000
MAX_UPLOADS_BYTES = 300_000_000
NUM_LEARNERS = 10
LONG = [pytest.mark.faults, pytest.mark.timeout(600)]
# One connection each: streams of one connection share its window.
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 2**22))


def content(seed: int) -> bytes:
    return random.Random(seed).randbytes(BLOB_BYTES)


def control_calls(address: str, num: int) -> list[float]:
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
def test_clients_that_stop_reading_do_not_block_others(
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
        p99 = sorted(seconds)[int(0.99 * len(seconds))]
        record(f"p99 {1000 * p99:.1f} ms, {growth / 1e6:.2f} MB per stream")
        # They were not sent the whole blob.
        assert all(call.is_active() for call in stalled)
        assert growth < MAX_STREAM_BYTES
        assert p99 < p99_seconds


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

    learners = {"num_learners": NUM_LEARNERS + 1, "num_minibatches": 1, "batch_size": 16}
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


MODEL_BYTES = 16 * 2**20
# An option of glibc's mallopt: larger blocks are given back once they are freed.
_M_MMAP_THRESHOLD = -3


def learner() -> Weights:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(8, 2**19, generator=generator)
    weights[torch.rand(weights.shape, generator=generator) < 0.1] = 0.0
    return {f"w{number}": tensor.clone() for number, tensor in enumerate(weights)}


def growth(cluster: Cluster, method: str, path: Path, num_learners: int) -> int:
    process = cluster.start(
        f"soup-{num_learners}",
        ["-m", "tests.faults.test_memory", method, str(path), str(num_learners)],
    )
    assert process.wait() == 0, process.text()
    return int(process.wait_for(r"growth (\d+)")[1])


@pytest.mark.parametrize(
    ("method", "num_learners"),
    [
        ("greedy", 12),
        pytest.param("greedy", 64, marks=pytest.mark.faults),
        pytest.param("uniform", 64, marks=pytest.mark.faults),
    ],
)
def test_memory_of_a_soup_does_not_grow_with_its_learners(
    cluster: Cluster, method: str, num_learners: int, record: Record
) -> None:
    path = cluster.directory / "learner"
    path.write_bytes(encode_sparse(learner()))
    few, many = (growth(cluster, method, path, num) for num in (4, num_learners))
    models = [f"{size / MODEL_BYTES:.2f} models' worth" for size in (few, many)]
    record(f"4 learners {models[0]}, {num_learners} learners {models[1]}")
    assert many == pytest.approx(few, abs=MODEL_BYTES / 8)
    # The model that evaluates and the open file; then the greedy soup, or the uniform soup's
    # sums, in float64; and of eight tensors those in the making.
    assert max(few, many) <= 3.7 * MODEL_BYTES


class Held(nn.Module):
    def __init__(self, weights: Weights) -> None:
        super().__init__()
        for name, tensor in weights.items():
            self.register_parameter(name, nn.Parameter(tensor))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).float()


def main() -> None:
    method, path, num_learners = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    # What is freed goes back at once, so that what is counted is what is in use.
    assert ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**18)
    specs = specs_of(learner())
    scores = iter(range(10**9))

    def evaluate(weights: Mapping[str, Tensor]) -> Scored:
        evaluator.score(weights)
        return Scored(next(scores) / 1e9, {})  # each mixture is the best so far

    def opened() -> Mapping[str, torch.Tensor]:
        return open_weights(path, like=specs)

    def ignore(_done: int, _total: int) -> None:
        """No progress bar."""

    evaluator = Evaluator(
        [Held(learner())],
        inputs=ImageFormat(1, 1, 1, mean=(0.0,), std=(1.0,)),
        device="cpu",
        examples_N=torch.zeros(1, 1, 1, 1, dtype=torch.uint8),
        target=SingleLabel(1),
        targets_N=torch.zeros(1, dtype=torch.int64),
        batch_norm_examples_M=None,
    )
    evaluator.score(opened())
    gc.collect()
    reset_peak()
    before = resident_bytes()
    learners = [opened] * num_learners
    if method == "greedy":
        soup = greedy_soup(learners, one_by_one(evaluate), num_alphas=2, on_progress=ignore)
    else:
        soup = weighted_soup(learners, None, one_by_one(evaluate), on_progress=ignore)
    assert sum(item.kept for item in soup.ingredients.values()) == num_learners
    model_bytes = sum(spec.num_bytes for spec in specs.values())
    sys.stdout.write(f"growth {resident_bytes(peak=True) - before + model_bytes}\n")


if __name__ == "__main__":
    main()
