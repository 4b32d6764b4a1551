"""The clock is set, or the coordinator stands still: leases neither end nor last for ever."""

from __future__ import annotations

import signal
import time

import pytest

from tests.cluster import Cluster

DAY_SECONDS = 86_400
STOP_LEASE_SECONDS = 3.0
RUN = {
    "model": "resnet8",
    # A deadline that is over when the clock is set forward, and never when it is set back.
    "learners": {"num_learners": 2, "batch_size": 16, "deadline_seconds": 3600},
    "soup": {"num_alphas": 1, "batch_norm_examples": 64},
}


def start_coordinator(cluster: Cluster, lease_seconds: float) -> None:
    set_clock(cluster, 0)
    offset = str(cluster.directory / "offset")
    program = ["-m", "tests.faults.jumping_coordinator", offset, "--"]
    cluster.start_coordinator(*cluster.leases_of(lease_seconds), program=program)


def set_clock(cluster: Cluster, seconds: int) -> None:
    new = cluster.directory / "offset.new"
    new.write_text(str(seconds))
    new.replace(cluster.directory / "offset")


def test_clock_that_is_set_forward_ends_no_lease_and_no_run(cluster: Cluster) -> None:
    start_coordinator(cluster, lease_seconds=3000.0)
    with cluster.client() as client:
        run = client.start_run(RUN)
        workers = [cluster.play_worker(name) for name in ("a", "b")]
        first = workers[0].take()
        set_clock(cluster, DAY_SECONDS)
        # A new lease has the coordinator look at all of them.
        second = workers[1].take()
        assert second.learner_index != first.learner_index
        for worker, assignment in zip(workers, (first, second), strict=True):
            worker.submit(assignment)
        final = client.wait(run.run_id)
    assert [learner.attempts for learner in final.learners] == [1, 1]


@pytest.mark.timeout(120)
def test_clock_that_is_set_back_keeps_no_lease_of_a_silent_worker(cluster: Cluster) -> None:
    start_coordinator(cluster, lease_seconds=1.5)
    with cluster.client() as client:
        client.start_run({**RUN, "learners": {"num_learners": 1, "batch_size": 16}})
        silent, heir = (cluster.play_worker(name) for name in ("silent", "heir"))
        silent.take()
        set_clock(cluster, -DAY_SECONDS)
        assert heir.take().epoch == 2


def test_leases_outlast_a_stop_of_the_coordinator_that_is_longer_than_they_are(
    cluster: Cluster,
) -> None:
    coordinator = cluster.start_coordinator(*cluster.leases_of(STOP_LEASE_SECONDS))
    with cluster.client() as client:
        run = client.start_run({**RUN, "learners": {"num_learners": 2, "batch_size": 16}})
        workers = [cluster.play_worker(name) for name in ("one", "two")]
        taken = [worker.take() for worker in workers]
        coordinator.send(signal.SIGSTOP)
        time.sleep(STOP_LEASE_SECONDS + 2.0)  # the stop itself, which only time makes long
        coordinator.send(signal.SIGCONT)
        coordinator.wait_for("event=paused")
        for worker, assignment in zip(workers, taken, strict=True):
            worker.submit(assignment)
        final = client.wait(run.run_id)
    assert [learner.attempts for learner in final.learners] == [1, 1]
    assert [learner.worker for learner in final.learners] == ["one", "two"]
    assert "lease_expired" not in coordinator.text()
