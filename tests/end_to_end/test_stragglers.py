"""One worker that dies and one that is slow, as real processes see them."""

from __future__ import annotations

import pytest

from lipt.common.states import LearnerState, RunState
from lipt.trainer.views import RunView
from tests.cluster import SMALL_RUN, Cluster

# Long enough for one commit on a busy machine.
DEADLINE_SECONDS = 20.0


def straggle(cluster: Cluster) -> tuple[RunView, int]:
    """A run with one learner in, one at a worker that died, and one at a slow worker.

    Returns:
        The run as it ended, and the index of the learner that came in.
    """
    cluster.start_coordinator(*cluster.leases_of(3.0))
    slow = cluster.start_worker("slow")
    slow.wait_for("joined")
    learners = {
        "num_learners": 3,
        # So long that only its deadline can end it.
        "num_steps": 100_000,
        "batch_size": 32,
        "deadline_seconds": DEADLINE_SECONDS,
        "min_learners": 1,
    }
    with cluster.client() as client:
        quick, dead = (cluster.play_worker(name) for name in ("quick", "dead"))
        run = client.start_run({**SMALL_RUN, "learners": learners})
        slow.wait_for("density")
        dead.take()
        first = quick.take()
        quick.submit(first)
        for final in client.watch(run.run_id):
            if final.ended:
                slow.wait_for("is no longer needed")
                return final, first.learner_index
    raise AssertionError("the run was not watched to its end")


@pytest.mark.parametrize(
    # How much later it is is for the machine to say; tests/coordinator/runs/test_driver.py shows
    # with a clock of its own that the service means to be on time.
    "late_seconds",
    [60.0, pytest.param(1.0, marks=pytest.mark.faults)],
)
def test_run_goes_on_at_its_deadline_without_the_dead_and_the_slow(
    cluster: Cluster, late_seconds: float
) -> None:
    final, arrived = straggle(cluster)
    assert final.state is RunState.READY, final.message
    assert final.learners[arrived].state is LearnerState.DONE
    dropped = [item for item in final.learners if item.index != arrived]
    assert {item.state for item in dropped} == {LearnerState.DROPPED}
    assert all("the deadline of 20 s has passed with 1 of 3" in item.message for item in dropped)
    assert final.costs is not None
    assert 0.0 <= final.costs.training_seconds - DEADLINE_SECONDS <= late_seconds
