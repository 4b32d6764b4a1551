"""SIGKILL to the coordinator at seeded moments: nothing is lost, nothing is done twice."""

import json
import random
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Barrier
from typing import NamedTuple, TypeVar

import grpc
import pytest

from lipt import Client
from lipt.common.access.tokens import WORKER_SECRET
from lipt.common.blobs.blob import BlobName, blob_to_proto
from lipt.common.errors import ConfigError, UnreachableError
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.state.maintenance import read_records
from lipt.coordinator.state.records import Done, RunRecord
from lipt.v1 import worker_pb2, worker_pb2_grpc
from lipt.worker.client import Assignment
from tests.cluster import Cluster, LoggedProcess
from tests.coordinator.made_up_runs import shard_of
from tests.end_to_end.conftest import small_run
from tests.faults.conftest import Record
from tests.faults.dying_coordinator import cut_power
from tests.played_worker import PlayedWorker

NUM_LEARNERS = 4
RUN = {
    "model": "resnet8",
    "initialization": {"steps": 4, "batch_size": 32},
    "learners": {
        "num_learners": NUM_LEARNERS,
        "num_steps": 2,
        "num_minibatches": 1,
        "batch_size": 32,
    },
    "soup": {"batch_norm_examples": 64},
}
# A run meets one moment of each group, in this order: a stage that is over does not come again.
# write and written: before and after a transaction's COMMIT, result and recorded: of one with a
# learner's result; sync: on a file's way to the disk.
GROUPS = (
    ("initialization", "sharding", "write", "written"),
    ("download", "upload", "sync", "result", "recorded"),
    ("soup", "selection"),
)
# What the run's record says at a moment inside a stage.
STATES = {
    "initialization": RunState.INITIALIZING,
    "sharding": RunState.SHARDING,
    "download": RunState.TRAINING,
    "upload": RunState.TRAINING,
    "sync": RunState.TRAINING,
    "result": RunState.TRAINING,
    "recorded": RunState.TRAINING,
    "soup": RunState.MERGING,
    "selection": RunState.READY,
}
# So soon it is noticed that the test has failed meanwhile.
_RECONNECT_SECONDS = 10.0
_END_SECONDS = 300.0
# No lease ends, however slow the machine: a learner that is taken again was handed out again.
LEASE_SECONDS = 3600

ResultT = TypeVar("ResultT")


class Outcome(NamedTuple):
    weights: str
    subset: str
    shards: tuple[str, ...]
    results: tuple[str, ...]


class MortalCoordinator:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._state_dir = cluster.directory / name
        self._journal = cluster.directory / f"{name}.syncs"
        self._leases = cluster.leases_of(LEASE_SECONDS)

    def start(self, kind: str = "none", number: int = 0) -> LoggedProcess:
        """Start the next process, which kills itself at the n-th event of a kind."""
        return self._cluster.start_coordinator(
            *("--state-dir", str(self._state_dir), *self._leases),
            *("--listen", self._cluster.address or "127.0.0.1:0"),
            program=["-m", "tests.faults.dying_coordinator", kind, str(number), "--"],
            environment={"SYNC_JOURNAL": str(self._journal)},
        )

    def cut_power(self) -> None:
        cut_power(self._state_dir / "blobs", self._journal)

    def record(self) -> RunRecord | None:
        runs = [run for run in read_records(self._state_dir, []) if isinstance(run, RunRecord)]
        assert len(runs) <= 1
        return runs[0] if runs else None


class Trainer:
    def __init__(self, address: str) -> None:
        self._address = address
        self.given_up = threading.Event()

    def subset(self) -> str:
        with Client(self._address, reconnect_seconds=_RECONNECT_SECONDS) as client:
            # The first attempt may have been durable before its answer was lost.
            with suppress(ConfigError):
                self._insist(lambda: client.start_run(RUN, name="run"))
            self._insist(lambda: client.wait("run"))
            return self._insist(lambda: client.subset("run", "grand", fraction=0.1)).digest

    def _insist(self, action: Callable[[], ResultT]) -> ResultT:
        while not self.given_up.is_set():
            with suppress(UnreachableError):
                return action()
        raise AssertionError("nobody answered")


def outcome(run: RunRecord | None, subset: str) -> Outcome:
    assert run is not None
    assert run.pretrained_weights is not None
    return Outcome(
        weights=run.pretrained_weights.sha256,
        subset=subset,
        shards=tuple(shard_of(learner).sha256 for learner in run.learners),
        results=tuple(learner.result.blob.sha256 for learner in run.learners if learner.result),
    )


def finished(run: RunRecord | None) -> dict[int, tuple[int, str, object]]:
    return {
        learner.index: (learner.epoch, learner.status.holder.worker_id, learner.status.result)
        for learner in (run.learners if run else ())
        if isinstance(learner.status, Done)
    }


def said(pattern: str, workers: list[LoggedProcess]) -> Counter[int]:
    text = "".join(worker.text() for worker in workers)
    return Counter(int(index) for index in re.findall(rf"learner \w+/(\d+){pattern}", text))


def acknowledged(workers: list[LoggedProcess]) -> Counter[int]:
    return said(" is in: ", workers)


def undisturbed(cluster: Cluster) -> tuple[Outcome, dict[str, int]]:
    mortal = MortalCoordinator(cluster, "undisturbed")
    coordinator = mortal.start()
    worker = cluster.start_worker("calm")
    subset = Trainer(cluster.address).subset()
    assert worker.stop() == 0
    assert coordinator.stop() == 0
    counts: dict[str, int] = json.loads(coordinator.wait_for(r"^counted (\{.*)")[1])
    return outcome(mortal.record(), subset), counts


def draw_moments(draw: random.Random, counts: Mapping[str, int]) -> Iterator[list[tuple[str, int]]]:
    """One moment of each group, in the first half; every kind comes before one comes again."""
    left: list[list[str]] = [[] for _ in GROUPS]
    while True:
        for kinds, group in zip(left, GROUPS, strict=True):
            kinds[:] = kinds or draw.sample(group, len(group))
        kinds = [group.pop() for group in left]
        yield [(kind, draw.randint(1, max(1, counts[kind] // 2))) for kind in kinds]


def die_or_end(process: LoggedProcess, asking: Future[str]) -> bool:
    ended = asking.add_done_callback
    ended(lambda _: process.process.poll() is None and process.send(signal.SIGTERM))
    status = process.process.wait(_END_SECONDS)
    return status == -signal.SIGKILL


def live_through(
    cluster: Cluster, name: str, moments: list[tuple[str, int]]
) -> tuple[Outcome, list[tuple[str, int]]]:
    mortal = MortalCoordinator(cluster, name)
    process = mortal.start(*moments[0])
    workers = [cluster.start_worker(f"{name}-{number}") for number in (1, 2)]
    deaths: list[tuple[str, int]] = []
    done: dict[int, tuple[int, str, object]] = {}
    trainer = Trainer(cluster.address)
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        stack.callback(trainer.given_up.set)
        asking = pool.submit(trainer.subset)
        for moment, following in zip(moments, [*moments[1:], ("none", 0)], strict=True):
            if die_or_end(process, asking):
                deaths.append(moment)
                mortal.cut_power()
                acked, run = acknowledged(workers), mortal.record()
                before, done = done, finished(run)
                assert acked.keys() <= done.keys()  # no acknowledged result is lost
                assert before.items() <= done.items()  # nor done again
                kind, _ = moment
                assert kind not in STATES or (run and run.state is STATES[kind]), (moment, run)
                process = mortal.start(*following)
        subset = asking.result(_END_SECONDS)
    assert process.stop() == 0
    run = mortal.record()
    assert done.items() <= finished(run).items()
    assert [worker.stop() for worker in workers] == [0, 0]
    # No learner is trained twice, and no shard is used twice.
    assert said(r": \S+ density ", workers) == acknowledged(workers) == Counter(range(NUM_LEARNERS))
    return outcome(run, subset), deaths


@pytest.mark.parametrize(
    ("num_deaths", "seed"),
    [
        pytest.param(3, 24, marks=pytest.mark.timeout(600)),
        pytest.param(20, 1, marks=[pytest.mark.faults, pytest.mark.timeout(1800)]),
    ],
)
def test_a_killed_coordinator_resumes_to_the_same_soup_and_subset(
    cluster: Cluster, num_deaths: int, seed: int, record: Record
) -> None:
    expected, counts = undisturbed(cluster)
    assert len(set(expected.shards)) == NUM_LEARNERS
    drawn, deaths = draw_moments(random.Random(seed), counts), list[tuple[str, int]]()
    rounds = 0
    while len(deaths) < num_deaths:
        rounds += 1
        assert rounds <= num_deaths, f"only {deaths} of the moments came"
        got, came = live_through(cluster, f"round-{rounds}", next(drawn))
        deaths += came
        assert got == expected, f"after {came}"
    kinds = Counter(kind for kind, _ in deaths)
    record(f"{len(deaths)} deaths in {rounds} runs: {dict(kinds)}")
    if num_deaths >= 20:
        assert kinds.keys() == {kind for group in GROUPS for kind in group}


NUM_WORKERS = 16
Prepared = tuple[PlayedWorker, Assignment, BlobName]


def done_on_disk(cluster: Cluster) -> set[int]:
    (run,) = (it for it in read_records(cluster.state, []) if isinstance(it, RunRecord))
    return {it.index for it in run.learners if it.state is LearnerState.DONE}


def is_acknowledged(cluster: Cluster, prepared: Prepared, together: Barrier) -> bool:
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
def test_concurrently_acknowledged_results_survive_a_kill(
    cluster: Cluster, kind: str, record: Record
) -> None:
    # At the second transaction with results, before or after its COMMIT.
    dying = ["-m", "tests.faults.dying_coordinator", kind, "2", "--"]
    flags = ("--insecure", *cluster.leases_of(LEASE_SECONDS))
    # While the disk takes the first of them, others come.
    slow = {"COMMIT_SECONDS": "1"}
    coordinator = cluster.start_coordinator(*flags, program=dying, environment=slow)
    run = small_run(num_learners=NUM_WORKERS + 1, num_steps=1)
    with cluster.client() as client:
        run_id = client.start_run(run).run_id

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


@pytest.mark.parametrize("drain_seconds", [0, 20])
@pytest.mark.parametrize("kind", ["result", "recorded"])
def test_a_result_whose_commit_meets_sigterm_is_stored_once(
    cluster: Cluster, kind: str, drain_seconds: int
) -> None:
    # Before or after the COMMIT of the only transaction with a result.
    asked = ["-m", "tests.faults.dying_coordinator", kind, "1", "--"]
    flags = cluster.config(
        f"drain_seconds = {drain_seconds}\n[lease]\nduration_seconds = {LEASE_SECONDS}\n"
    )
    environment = {"ASK_TO_END": "1"}
    coordinator = cluster.start_coordinator(
        "--insecure", *flags, program=asked, environment=environment
    )
    with cluster.client() as client:
        run_id = client.start_run(small_run(num_learners=2)).run_id
    worker = cluster.play_worker("w")
    assignment = worker.take()
    result = worker.upload(worker.learner(assignment))
    answered = is_acknowledged(cluster, (worker, assignment, result), Barrier(1))
    assert coordinator.wait() == 0
    on_disk = done_on_disk(cluster)
    assert on_disk == {assignment.learner_index}
    # With time to drain, the caller is told so.
    assert answered or not drain_seconds

    cluster.start_coordinator("--insecure", *flags, "--listen", cluster.address)
    worker.commit(assignment, result)
    worker = cluster.play_worker("w")
    with cluster.client() as client:
        worker.submit(worker.take())
        final = client.wait(run_id)
    assert [learner.attempts for learner in final.learners] == [1, 1]
    (run,) = (it for it in read_records(cluster.state, []) if isinstance(it, RunRecord))
    assert [learner.failures for learner in run.learners] == [0, 0]
