"""A learner's and a range's way through the worker; the coordinator is the test's own."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import LearnersConfig
from lipt.common.config.settings import load_settings
from lipt.common.errors import (
    ForeignBlobError,
    LearnerStoppedError,
    OtherDataError,
    OverLimitError,
    StaleLeaseError,
    StateError,
    UnknownBlobError,
    UnreachableError,
    WeightsError,
)
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.metrics import Meters, Phases
from lipt.common.process import Machine
from lipt.common.tensor_files import Weights, pack, specs_of
from lipt.core.passes import data_proof, read_range, score_range
from lipt.core.pretraining.learner import TrainedLearner
from lipt.core.tasks import LearnerTask, ScoredValues, ScoringTask
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import images_in
from lipt.data.inputs.specs import ImageFormat, spec_of
from lipt.data.loading import open_dataset
from lipt.data.shard import Shard, pack_shard
from lipt.models.encodings import open_weights
from lipt.models.registry import build_model
from lipt.v1 import worker_pb2
from lipt.worker import assignment as assigning
from lipt.worker.assignment import WorkerLimits
from lipt.worker.client import Assignment, LeaseKeeper
from lipt.worker.instruments import BLOB_BYTES, EXAMPLES, STEPS, WAITED, Phase
from lipt.worker.settings import WorkerSettings
from tests.blob_files import flip_a_bit
from tests.clock import Clock
from tests.meters import sums
from tests.tiny import linear
from tests.worker.fake_client import TASK, FakeClient, make_assignment, make_worker

pytest.importorskip("sklearn")

AWAY = UnreachableError("nobody answers.")
FULL = StateError("/state cannot be used: No space left on device.")


ALLOWED = ("tests.tiny",)


def weights_of(seed: int) -> Weights:
    model = build_model(
        TASK.model,
        num_classes=TASK.num_classes,
        inputs=spec_of(TASK.inputs),
        seed=seed,
        allowed_modules=ALLOWED,
    )
    return dict(model.state_dict())


THETA = weights_of(1)
LEARNER = TrainedLearner(weights_of(2), loss=0.5, train_seconds=3.0, waited_seconds=0.25)


@dataclass
class FakeTraining:
    """Stands for `train_learner`: answers with `result`, and keeps what it was given."""

    clock: Clock
    result: TrainedLearner | Exception = LEARNER
    after: Callable[[], object] = lambda: None
    initial: list[Weights] = field(default_factory=list)
    shards: list[Shard] = field(default_factory=list)

    def __call__(
        self,
        task: object,
        initial: Weights,
        shard: Shard,
        *,
        on_step: Callable[[int, float], None],
        **_: Any,
    ) -> TrainedLearner:
        self.initial.append(initial)
        self.shards.append(shard)
        self.clock.now += 3.0
        on_step(1, 0.75)
        self.after()
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class NotedLease(LeaseKeeper):
    def __init__(self, said: list[tuple[int, int, float]], *arguments: Any) -> None:
        self._said = said
        super().__init__(*arguments)

    def report(self, phase: worker_pb2.LearnerPhase, step: int = 0, loss: float = 0.0) -> None:
        if phase != worker_pb2.LEARNER_PHASE_FETCHING:
            self._said.append((phase, step, loss))
        super().report(phase, step, loss)


class World:
    def __init__(self, directory: Path, shard: bytes) -> None:
        self.fake = FakeClient(directory / "coordinator")
        self.cache = BlobStore(directory / "cache", max_blob_bytes=2**24)
        self.clock = Clock()
        self.training = FakeTraining(self.clock)
        self.events = Events()
        self.meters, self.phases = Meters(), Phases(*Phase, clock=self.clock)
        self.said: list[tuple[int, int, float]] = []
        self.pauses: list[float] = []
        self.stopping = self.stops_while_it_waits = False
        store = self.fake.blobs.store
        self.assignment = replace(
            make_assignment(),
            initial_weights=store.put_bytes(pack(THETA)),
            shard=store.put_bytes(shard),
        )

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.stopping = self.stops_while_it_waits

    def run(self, assignment: Assignment | None = None, *, cache_bytes: int = 2**24) -> None:
        assignment = assignment or self.assignment
        worker = replace(
            make_worker(self.fake, self.cache, cache_bytes=cache_bytes),
            events=self.events,
            meters=self.meters,
            phases=self.phases,
            pause=self._pause,
        )
        taken = (self.fake.client, assignment, worker.events, worker.levels)
        with NotedLease(self.said, *taken) as lease:
            worker.carry_out(assignment, lease, lambda: self.stopping)

    def decoded(self, name: BlobName) -> Weights:
        return dict(open_weights(self.fake.blobs.store.read_bytes(name), like=specs_of(THETA)))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path, pack_shard(open_dataset("digits"), torch.arange(8)))
    monkeypatch.setattr(assigning, "train_learner", world.training)
    monkeypatch.setattr(assigning, "perf_counter", world.clock)
    return world


def same(first: Weights, second: Weights) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_a_learner_is_fetched_trained_submitted_and_measured(world: World) -> None:
    world.run()
    (initial,), (shard,) = world.training.initial, world.training.shards
    assert same(initial, THETA)
    assert isinstance(shard, Shard)
    assert images_in(shard.examples).shape == (8, 1, 8, 8)
    ((worker_id, result, report, snapshots),) = world.fake.committed
    assert (worker_id, snapshots) == ("w", ())
    assert same(world.decoded(result), LEARNER.weights)
    assert (report.loss, report.train_seconds, report.total_seconds) == (0.5, 3.0, 3.0)
    assert isinstance(world.assignment.shard, BlobName)
    fetched = (world.assignment.initial_weights, world.assignment.shard)
    num_fetched = sum(name.size_bytes for name in fetched)
    assert report.bytes_received == num_fetched
    assert world.pauses == []
    assert world.said == [
        (worker_pb2.LEARNER_PHASE_TRAINING, 0, 0.0),
        (worker_pb2.LEARNER_PHASE_TRAINING, 1, 0.75),
        (worker_pb2.LEARNER_PHASE_SUBMITTING, 2, 0.5),
    ]
    counted = partial(sums, world.meters)
    assert counted(BLOB_BYTES) == {("received",): num_fetched, ("sent",): result.size_bytes}
    # One step is reported, of a minibatch of 8.
    assert (counted(STEPS), counted(EXAMPLES)) == ({(): 1.0}, {(): 8.0})
    assert world.phases.seconds()[("training",)] == 3.0
    assert counted(WAITED) == {(): 0.25}


def test_snapshots_are_submitted_in_training_order(world: World) -> None:
    early, late = weights_of(3), weights_of(4)
    world.training.result = replace(LEARNER, snapshots=(early, late))
    world.run()
    ((_, result, _, snapshots),) = world.fake.committed
    for name, weights in zip((*snapshots, result), (early, late, LEARNER.weights), strict=True):
        assert same(world.decoded(name), weights)


def test_a_damaged_cached_theta_star_is_fetched_again(world: World) -> None:
    world.run()
    theta = world.assignment.initial_weights
    flip_a_bit(world.cache.path(theta), -1)
    world.run()
    assert world.fake.blobs.reads.count(theta) == 2
    assert same(*world.training.initial)


def test_cache_that_is_too_small_keeps_the_theta_star_in_use(world: World) -> None:
    old = world.cache.put_bytes(b"of an earlier run")
    world.run(cache_bytes=0)
    assert not world.cache.has(old)
    assert world.cache.has(world.assignment.initial_weights)


def test_a_full_cache_disk_is_tolerated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise FULL

    monkeypatch.setattr(world.cache, "open_upload", full)
    world.run()
    assert same(world.training.initial[0], THETA)
    assert len(world.fake.committed) == 1
    assert world.events.count(EventKind.RETRIED, "caching") == 1


def test_weights_of_another_model_are_refused_before_any_training(world: World) -> None:
    other = world.fake.blobs.store.put_bytes(pack({"w": torch.zeros(2)}))
    with pytest.raises(WeightsError, match="missing, the model has"):
        world.run(replace(world.assignment, initial_weights=other))
    assert world.training.shards == []


@pytest.mark.parametrize("trouble", [AWAY, FULL])
def test_a_trained_learner_waits_for_the_coordinator_and_is_submitted_once(
    world: World, trouble: Exception
) -> None:
    world.fake.refusals["commit"] = [trouble] * 3
    world.run()
    assert len(world.training.shards) == 1
    assert len(world.fake.committed) == 1
    assert len(world.pauses) == 3
    assert all(seconds > 0 for seconds in world.pauses)
    assert world.events.count(EventKind.RETRIED, "handing over") == 3


@pytest.mark.parametrize("handing_over", [False, True])
def test_transfers_wait_for_an_unreachable_coordinator(world: World, handing_over: bool) -> None:
    def go_away() -> None:
        world.fake.blobs.failures = [AWAY] * 25

    if handing_over:
        world.training.after = go_away
    else:
        go_away()
    world.run()
    assert len(world.fake.committed) == 1
    assert len(world.pauses) == 25


def test_a_stopping_worker_does_not_wait_for_the_coordinator(world: World) -> None:
    world.fake.refusals["commit"] = [AWAY] * 100

    world.stops_while_it_waits = True
    with pytest.raises(LearnerStoppedError, match="before the assignment was submitted"):
        world.run()
    assert len(world.fake.refusals["commit"]) == 99
    assert world.fake.committed == []


def test_a_result_damaged_on_the_coordinator_is_sent_again(world: World) -> None:
    world.fake.refusals["commit"] = [UnknownBlobError("it is not whole any more.")]
    world.run()
    assert len(world.training.shards) == 1
    assert len(world.fake.committed) == 1
    assert world.events.count(EventKind.RETRIED, "handing over") == 1


class Scorer:
    def __init__(self, directory: Path) -> None:
        self.fake = FakeClient(directory / "coordinator")
        self.stopping = False
        self.model = linear(num_classes=10)
        self.digits = open_dataset("digits")
        cache = BlobStore(directory / "cache", max_blob_bytes=2**24)
        self.worker = make_worker(self.fake, cache, worker_data="digits")
        self.task = ScoringTask(
            model="tests.tiny:linear",
            num_classes=10,
            image=ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,)),
            fingerprint=self.digits.fingerprint,
            start=100,
            stop=190,
            batch_size=32,
            threads=1,
            values=ScoredValues.SIGNALS,
            nonce="nonce",
            proof_ids=(5, 7),
        )
        self.assignment = Assignment(
            assignment_id="scan-1/3",
            epoch=1,
            heartbeat_seconds=1.0,
            initial_weights=self.fake.blobs.store.put_bytes(pack(self.model.state_dict())),
            task=self.task,
        )

    def run(self, **changes: Any) -> None:
        assignment = replace(self.assignment, task=replace(self.task, **changes))
        worker = self.worker
        lease = LeaseKeeper(self.fake.client, assignment, worker.events, worker.levels)
        self.worker.carry_out(assignment, lease, lambda: self.stopping)


@pytest.fixture
def scorer(tmp_path: Path) -> Scorer:
    return Scorer(tmp_path)


@pytest.mark.parametrize("values", [ScoredValues.SIGNALS, ScoredValues.LOSSES_AND_FEATURES])
def test_a_range_s_values_are_submitted(scorer: Scorer, values: ScoredValues) -> None:
    scorer.run(values=values)
    ((worker_id, name, report, snapshots),) = scorer.fake.committed
    assert (worker_id, snapshots) == ("w", ())
    task = replace(scorer.task, values=values)
    assert scorer.fake.proofs == [data_proof(scorer.digits, "nonce", (5, 7))]
    sent = read_range(scorer.fake.blobs.store.read_bytes(name), task, 64)
    here = score_range(scorer.model, scorer.digits, task, device=torch.device("cpu"))
    assert sent.keys() == here.keys()
    assert all(torch.equal(sent[name], here[name]) for name in here)
    assert report.bytes_received == scorer.assignment.initial_weights.size_bytes
    assert sums(scorer.worker.meters, BLOB_BYTES)["sent",] == name.size_bytes


def test_scoring_data_is_opened_at_the_model_s_size(scorer: Scorer) -> None:
    large = ImageFormat(1, 16, 16, mean=(0.5,), std=(0.25,))
    assert scorer.worker.dataset(replace(scorer.task, image=large)).inputs.height == 16  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fingerprint": "0" * 64}, "data has 0000.*--worker-data"),
        ({"image": ImageFormat(3, 8, 8, mean=(0.5,) * 3, std=(0.25,) * 3)}, "and 3x8x8 images"),
        ({"threads": 13}, "comes to 13 threads"),
    ],
    ids=["data", "colours", "threads"],
)
def test_an_impossible_range_is_declined_before_downloads(
    scorer: Scorer, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(OverLimitError, match=words):
        scorer.run(**changes)
    assert scorer.fake.blobs.reads == []
    assert scorer.fake.committed == []


def test_a_range_finished_elsewhere_is_no_failure(scorer: Scorer) -> None:
    scorer.run()
    scorer.fake.blobs.failures = [ForeignBlobError("this one has none.")]
    with pytest.raises(StaleLeaseError, match="another worker was quicker"):
        scorer.run(start=0, stop=64)


def test_scoring_detects_changed_data_and_stops_between_batches(
    scorer: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as changing:
        changing.setattr(Dataset, "has_changed", lambda _: True)
        with pytest.raises(OtherDataError, match="have changed while they were scored"):
            scorer.run()
    scorer.stopping = True
    with pytest.raises(LearnerStoppedError):
        scorer.run()
    assert scorer.fake.committed == []
    scorer.stopping = False
    scorer.run()
    assert len(scorer.fake.committed) == 1


CPU = torch.device("cpu")
MACHINE = Machine(num_cores=3, memory_bytes=10 * 2**30)


def limits(device: torch.device = CPU, **flags: Any) -> WorkerLimits:
    flags = {"allow_modules": ("tests.tiny",), **flags}
    return WorkerLimits(load_settings(WorkerSettings, config=None, flags=flags), MACHINE, device)


def task(**learners: Any) -> LearnerTask:
    return replace(TASK, learners=LearnersConfig(**learners))


@pytest.mark.parametrize(
    ("device", "flags", "threads", "memory"),
    [
        ("cpu", {}, 12, 8 * 2**30),
        # A CUDA device refuses by itself what it has no room for.
        ("cuda:0", {}, 12, None),
        ("cuda:0", {"max_threads": 5, "max_memory": "2GiB"}, 5, 2 * 2**30),
    ],
    ids=["machine", "device", "flags"],
)
def test_worker_limits_come_from_flags_or_the_machine(
    device: str, flags: dict[str, Any], threads: int, memory: int | None
) -> None:
    found = limits(torch.device(device), **flags)
    expected = {"worker_threads": threads, "worker_memory": memory}
    assert {name: limit.at_most for name, limit in found.at_most.items()} == {
        name: most for name, most in expected.items() if most is not None
    }


def test_too_many_threads_are_refused_with_the_flag() -> None:
    with pytest.raises(OverLimitError) as refused:
        limits(max_threads=2).require(task(cpu_threads=3))
    assert str(refused.value) == (
        "learners.cpu_threads = 3: training of a learner comes to 3 threads, over this worker's "
        "--max-threads = 2 threads. Lower learners.cpu_threads to at most 2, or raise this "
        "worker's --max-threads."
    )


def test_too_much_memory_is_refused_with_the_figures() -> None:
    large = replace(TASK, model="resnet18", learners=LearnersConfig(batch_size=100_000))
    words = r"learners\.batch_size = 100000: memory of a worker comes to .* GB, .* GB of it for "
    with pytest.raises(OverLimitError, match=words + "the activations of a minibatch, over this"):
        limits(max_memory="2GiB").require(large)


def test_workers_of_one_host_have_different_names() -> None:
    assert WorkerSettings().name == f"{socket.gethostname()}-{os.getpid()}"
