"""What is computed for whom, and what is not: by counts and order, whatever the machine's speed."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from lipt.v1 import subset_pb2 as pb
from lipt.v1 import subset_pb2_grpc
from tests.cluster import Cluster
from tests.serving import own_user_channel

NUM_OTHERS = 600
PATIENCE_SECONDS = 120.0
MANY = """
[compute]
max_waiting = 1000
max_waiting_per_caller = 1000
linger_seconds = 0.0
[limits.per_peer]
calls_per_second = 0.0
max_streams = 1000
"""
FEW = "[compute]\nmax_waiting_per_caller = 2\nlinger_seconds = 0.0\n"


@contextmanager
def standing_still(pids: list[int]) -> Iterator[None]:
    """Processes that do nothing during the block."""
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
    """Of the subset that a call ends with."""
    (num_examples,) = [
        answer.subset.num_examples async for answer in call if answer.HasField("subset")
    ]
    return int(num_examples)


async def until(call: Any, *, waiting: bool) -> pb.SubsetProgress:
    """A call's first progress while it waits for its turn, or has had it."""
    async for answer in call:
        if bool(answer.progress.ahead) is waiting:
            return answer.progress
    raise AssertionError("it ended before")


def num_subsets(cluster: Cluster) -> int:
    with sqlite3.connect(cluster.state / "lipt.db") as database:
        return int(
            database.execute("SELECT count(*) FROM records WHERE kind = 'subset'").fetchone()[0]
        )


def start(cluster: Cluster, settings: str, small_run: dict[str, Any]) -> tuple[Any, list[int]]:
    """A coordinator with a run "r" that is ready, and the process of its dear lane."""
    coordinator = cluster.start_coordinator(*cluster.config(settings))
    dear = coordinator.computing()
    worker = cluster.play_worker("w")
    with cluster.client() as client:
        learners = {**small_run["learners"], "num_learners": 1}
        run = client.start_run({**small_run, "learners": learners}, name="r")
        worker.submit(worker.take())
        client.wait(run.run_id)
        client.subset("r", "grand", budget=10)
    return coordinator, dear


def test_cheap_requests_are_answered_while_a_dear_one_runs_and_600_are_asked_and_cancelled(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    coordinator, dear_lane = start(cluster, MANY, small_run)

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
    # The first one, and those of `ask` that somebody waited for.
    assert num_subsets(cluster) == 1 + 5


def test_job_under_way_ends_when_nobody_waits_for_it_any_more(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    coordinator, dear_lane = start(cluster, MANY, small_run)

    async def ask() -> None:
        async with asking(cluster) as honest:
            with standing_still(dear_lane):
                abandoned = honest(20)
                await until(abandoned, waiting=False)
                # Asked for only now: two calls of one connection may arrive in either order.
                wanted = honest(21)
                await until(wanted, waiting=True)
                abandoned.cancel()
                # It does not hear that it is dropped: its process is replaced.
                assert await size(wanted) == 21

    asyncio.run(ask())
    coordinator.wait_for("event=job_dropped detail=computing job=SelectSubset")
    assert num_subsets(cluster) == 2


def test_cancelled_run_takes_what_is_computed_for_it_along(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    coordinator, _ = start(cluster, FEW, small_run)
    endless = {**small_run, "initialization": {"steps": 300_000}}
    with cluster.client() as client:
        run = client.start_run(endless, name="endless")
        coordinator.wait_for("run endless: initializing")
        for view in client.watch(run.run_id):
            if view.progress is not None and view.progress.total:
                break
        client.cancel(run.run_id)
        # The next dear one has its turn, in the process that has the data open.
        assert len(client.subset("r", "facility_location", budget=20)) == 20
    coordinator.wait_for("event=job_dropped detail=computing job=InitializeWeights")
