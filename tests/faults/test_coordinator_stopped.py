"""A coordinator that stands still (SIGSTOP, a machine that is moved) blames no worker for it."""

from __future__ import annotations

import signal
import time

from lipt.common.states import RunState
from tests.cluster import Cluster

LEASE_SECONDS = 3.0
RUN = {
    "model": "resnet8",
    "learners": {"num_learners": 2, "num_steps": 1, "batch_size": 32},
    "soup": {"num_alphas": 1, "batch_norm_examples": 64},
}


def test_leases_outlast_a_stop_of_the_coordinator_that_is_longer_than_they_are(
    cluster: Cluster,
) -> None:
    coordinator = cluster.start_coordinator(*cluster.leases_of(LEASE_SECONDS))
    with cluster.client() as client:
        run = client.start_run(RUN)
        workers = [cluster.play_worker(name) for name in ("one", "two")]
        taken = [worker.take() for worker in workers]
        coordinator.send(signal.SIGSTOP)
        time.sleep(LEASE_SECONDS + 2.0)  # the stop itself, which only time makes long
        coordinator.send(signal.SIGCONT)
        coordinator.wait_for("event=paused")
        for worker, assignment in zip(workers, taken, strict=True):
            worker.submit(assignment)
        final = client.wait(run.run_id)
    assert final.state is RunState.READY, final.message
    assert [learner.attempts for learner in final.learners] == [1, 1]
    assert [learner.worker for learner in final.learners] == ["one", "two"]
    assert "lease_expired" not in coordinator.text()
