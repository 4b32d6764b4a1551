"""A thousand workers, simulated in one process: all are served, and none is starved."""

from __future__ import annotations

import asyncio

import pytest

from lipt.common.states import LearnerState
from tests.cluster import Cluster
from tests.faults.conftest import Record
from tests.faults.swarm import Swarm

# Calls that do no work; with one that takes longer than is between two heartbeats, leases go.
PROMPT = {"Register", "Heartbeat"}
HEARTBEAT_SECONDS = 10.0
RUN = {
    "learners": {"num_steps": 1, "batch_size": 1},
    "soup": {"method": "uniform", "num_alphas": 1, "reestimate_batch_norm": False},
}


@pytest.mark.parametrize(
    "num_workers",
    [48, pytest.param(1000, marks=[pytest.mark.faults, pytest.mark.timeout(1200)])],
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
