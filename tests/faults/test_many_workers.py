"""A thousand workers, simulated in one process: all are served, and none is starved."""

from __future__ import annotations

import asyncio

import pytest

from lipt.trainer.views import LearnerState
from tests.end_to_end.cluster import Cluster
from tests.faults.conftest import Record
from tests.faults.swarm import Swarm

# So few learners at a time that most workers wait: who is served next is then a choice.
WORKERS_PER_LEARNER = 4
# Calls that do no work; with one that takes longer than is between two heartbeats, leases go.
PROMPT = {"Register", "Heartbeat"}
HEARTBEAT_SECONDS = 10.0
RUN = {
    "learners": {"num_steps": 1, "batch_size": 1},
    "soup": {"method": "uniform", "num_alphas": 1, "reestimate_batch_norm": False},
}


@pytest.mark.parametrize(
    ("num_workers", "num_learners"),
    [
        (48, 96),
        pytest.param(1000, 2000, marks=[pytest.mark.faults, pytest.mark.timeout(1200)]),
    ],
)
def test_every_worker_is_served_and_every_learner_comes_in(
    cluster: Cluster, num_workers: int, num_learners: int, record: Record
) -> None:
    cluster.start_coordinator("--model", "tests.faults.tiny:linear")
    per_run = -(-num_workers // WORKERS_PER_LEARNER)
    with cluster.client() as client:
        learners = {**RUN["learners"], "num_learners": per_run}
        runs = [
            client.start_run({**RUN, "learners": learners}).run_id
            for _ in range(num_learners // per_run)
        ]
        swarm = Swarm(
            cluster.address,
            cluster.directory / "state" / "blobs",
            num_workers=num_workers,
            num_learners=num_learners,
        )
        asyncio.run(swarm.run())
        states = [learner.state for run in runs for learner in client.run(run).learners]
        attempts = [learner.attempts for run in runs for learner in client.run(run).learners]
    assert states == [LearnerState.DONE] * num_learners
    assert attempts == [1] * num_learners  # no lease was lost on the way
    counts = [swarm.committed[number] for number in range(num_workers)]
    for name, seconds in sorted(swarm.latencies.items()):
        seconds.sort()
        p50, p99 = (1000 * seconds[int(share * (len(seconds) - 1))] for share in (0.5, 0.99))
        record(f"{name}: {len(seconds)} calls, median {p50:.1f} ms, p99 {p99:.1f} ms")
        assert name not in PROMPT or p99 <= 1000 * HEARTBEAT_SECONDS, name
    record(f"learners per worker: {min(counts)} to {max(counts)}")
    fair = num_learners // num_workers
    assert fair - 1 <= min(counts)
    assert max(counts) <= fair + 1
