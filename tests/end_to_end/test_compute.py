import asyncio
import os
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.tensor_files import Weights
from lipt.core.passes import score_range
from lipt.core.tasks import ScoringTask
from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import spec_of
from lipt.data.loading import open_dataset
from lipt.models.registry import build_model, lay_out
from lipt.trainer.subsets.subset import Subset
from lipt.v1 import run_pb2, subset_pb2_grpc
from lipt.v1 import subset_pb2 as pb
from lipt.worker.client import Assignment
from tests.cluster import SMALL_RUN, Cluster, LoggedProcess
from tests.end_to_end.conftest import small_run
from tests.played_worker import PlayedWorker
from tests.serving import own_user_channel

NUM_OTHERS = 600
PATIENCE_SECONDS = 120.0
MANY = """
[compute]
max_waiting = 1000
max_waiting_per_caller = 1000
[limits.per_peer]
calls_per_second = 0.0
max_streams = 1000
"""


@contextmanager
def standing_still(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):  # it was replaced meanwhile
                os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def asking(cluster: Cluster) -> AsyncIterator[Callable[..., Any]]:
    """Begins calls of one connection for subsets of the run "r"; nothing is waited for yet."""
    async with own_user_channel(cluster.address) as channel:
        stub: Any = subset_pb2_grpc.SubsetServiceStub(channel)

        def ask(budget: int, strategy: str = "facility_location") -> Any:
            return stub.GetSubset(pb.GetSubsetRequest(run_id="r", strategy=strategy, budget=budget))

        yield ask


async def size(call: Any) -> int:
    (num_examples,) = [
        answer.subset.num_examples async for answer in call if answer.HasField("subset")
    ]
    return int(num_examples)


async def until(call: Any, *, waiting: bool) -> run_pb2.Progress:
    async for answer in call:
        if bool(answer.progress.ahead) is waiting:
            return answer.progress
    raise AssertionError("it ended before")


def test_light_requests_are_answered_during_a_heavy_one(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator(*cluster.config(MANY))
    dear_lane = coordinator.computing()
    worker = cluster.play_worker("w")
    with cluster.client() as client:
        run = client.start_run(small_run(num_learners=1), name="r")
        worker.submit(worker.take())
        client.wait(run.run_id)
        client.subset("r", "grand", budget=10)

    async def ask() -> None:
        async with asking(cluster) as honest, asking(cluster) as flooding:
            with standing_still(dear_lane):
                dear = honest(20)
                await until(dear, waiting=False)
                others = [flooding(21 + number) for number in range(NUM_OTHERS)]
                places = [(await until(call, waiting=True)).ahead for call in others]
                assert all(1 <= place <= NUM_OTHERS for place in places)
                # By labels alone, and by signals that are kept.
                assert await size(honest(7, "uniform")) == 7
                assert await size(honest(8, "grand")) == 8
                for call in others:
                    call.cancel()
                assert await size(honest(9, "uniform")) == 9
            assert await size(dear) == 20
            # Whatever of the others was left would be computed before this one.
            assert await size(flooding(19)) == 19

    asyncio.run(ask())
    dropped = coordinator.text().count("event=job_dropped detail=waiting")
    assert dropped == NUM_OTHERS
    # The first one, and those of `ask` that had a waiting caller.
    subsets = "SELECT count(*) FROM records WHERE kind = 'subset'"
    with sqlite3.connect(cluster.state / "lipt.db") as database:
        assert database.execute(subsets).fetchone() == (1 + 5,)


pytest.importorskip("sklearn")

# At 32 x 32 a batch is of 64 digits, and the 1,797 are 15 ranges.
CONFIG = """
[dataset]
source = "digits"
image_size = 32
[compute]
scoring_range = 128
scoring_workers = "{who}"
verified_share = 0.5
"""
RUN = {
    **SMALL_RUN,
    "seed": 5,
    "evaluation_threads": 1,
    "learners": {"num_learners": 1, "num_steps": 1, "batch_size": 32, "num_minibatches": 1},
}


def serve(cluster: Cluster, who: str = "same", listen: str = "127.0.0.1:0") -> LoggedProcess:
    flags = cluster.config(CONFIG.format(who=who))
    return cluster.start_coordinator("--listen", listen, *flags)


def subset(cluster: Cluster) -> Subset:
    with cluster.client() as client:
        return client.subset(strategy="craig", fraction=0.1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A state directory with a ready run, and the digest of a subset made without other workers."""
    directory = tmp_path_factory.mktemp("alone")
    with Cluster(directory) as cluster:
        coordinator = serve(cluster, "none")
        cluster.start_worker("one")
        with cluster.client() as client:
            client.wait(client.start_run(dict(RUN)).run_id)
        coordinator.stop()
        kept = directory / "kept"
        shutil.copytree(cluster.state, kept)
        serve(cluster, "none")
        return kept, subset(cluster).digest


@pytest.fixture
def digest(cluster: Cluster, alone: tuple[Path, str]) -> str:
    """That run lies in the test's own state directory; without a request for that subset."""
    kept, digest = alone
    shutil.copytree(kept, cluster.state)
    return digest


@cache
def digits() -> Dataset:
    return open_dataset("digits", image_size=32)


def scored(worker: PlayedWorker, assignment: Assignment) -> Weights:
    task = assignment.task
    assert isinstance(task, ScoringTask)
    model = build_model(
        task.model, num_classes=task.num_classes, inputs=spec_of(task.inputs), seed=0
    )
    model = lay_out(model, task.model, torch.device("cpu"))
    model.load_state_dict(worker.weights(assignment))
    return score_range(model.eval(), digits(), task, device=torch.device("cpu"))


def test_faulty_scoring_workers_do_not_change_the_subset(cluster: Cluster, digest: str) -> None:
    coordinator = serve(cluster)
    with cluster.client() as client:
        gone, forger, honest = (client.create_token("worker", scores=True) for _ in range(3))
        trains = client.create_token("worker")
    vanishing, forging, second, scoring = (
        cluster.play_worker(name, has_data=True, token=given.secret)
        for name, given in zip("abcd", (gone, forger, forger, honest), strict=True)
    )
    for number in range(20):
        cluster.play_worker(f"id {number}", has_data=True, token=trains.secret)
    coordinator.wait_for("id 19 has the data, and scores none of it")
    with ThreadPoolExecutor() as threads:
        wanted = threads.submit(subset, cluster)
        vanishing.take()
        first, forged, right = forging.take(), second.take(), scoring.take()
        # A range that is right earns no trust for the next one of that token.
        forging.submit_range(first, scored(forging, first), digits())
        values = scored(scoring, right)
        scoring.submit_range(right, values, digits())
        wrong = {name: value + 0.5 for name, value in scored(second, forged).items()}
        second.submit_range(forged, wrong, digits())
        chosen = wanted.result()
    assert chosen.digest == digest
    coordinator.wait_for("has sent values that its examples do not have: its 2 ranges")
    scored_by = chosen.manifest["scored_by"]
    (credential,) = scored_by["credentials"]
    assert credential["credential"].startswith(f"token-{honest.token.token_id}-")
    assert (credential["num_examples"], scored_by["num_here"]) == (128, 1797 - 128)
    assert 30 < credential["num_verified"] < 98
    assert credential["unnoticed_at_1_percent"] == pytest.approx(0.5**1.28)


@pytest.mark.smoke
def test_acknowledged_results_survive_a_killed_coordinator(cluster: Cluster, digest: str) -> None:
    coordinator = serve(cluster)
    worker = cluster.play_worker("one", has_data=True)
    with ThreadPoolExecutor() as threads:
        wanted = threads.submit(subset, cluster)
        held = worker.take()
        worker.submit_range(held, scored(worker, held), digits())
        coordinator.stop(signal.SIGKILL)
        again = serve(cluster, listen=cluster.address)
        assert wanted.result().digest == digest
    assert again.wait_for(r"of 15 ranges, (\d+) by workers of 1 credentials")[1] == "1"
