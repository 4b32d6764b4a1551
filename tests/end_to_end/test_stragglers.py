"""One worker that dies and one that is slow, as real processes see them."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from lipt.common.errors import RunFailedError
from lipt.common.rpc.channel import open_channel
from lipt.trainer.views import LearnerState, RunState
from lipt.v1 import worker_pb2
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.stub_worker import StubWorker

DEADLINE_SECONDS = 6.0
PROGRESS = worker_pb2.LearnerProgress(phase=worker_pb2.LEARNER_PHASE_TRAINING, step=1)


def straggling(cluster: Cluster, small_run: dict[str, Any], min_learners: int) -> dict[str, Any]:
    """Start a coordinator with a short lease; the run's overrides."""
    config = cluster.directory / "run.toml"
    config.write_text("[lease]\nduration_seconds = 3.0\n")
    cluster.start_coordinator("--config", str(config))
    learners = {
        "num_learners": 3,
        # So long that only its deadline can end it.
        "num_steps": 100_000,
        "batch_size": 32,
        "deadline_seconds": DEADLINE_SECONDS,
        "min_learners": min_learners,
    }
    return {**small_run, "learners": learners}


def test_run_goes_on_at_its_deadline_without_the_dead_and_the_slow(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    overrides = straggling(cluster, small_run, min_learners=1)
    with cluster.client() as client, open_channel(cluster.address) as channel:
        run = client.start_run(overrides)
        quick, dead = (StubWorker(cluster.directory, channel, name) for name in ("quick", "dead"))
        first = quick.take()
        slow = cluster.start_worker("slow")
        slow.wait_for("density")
        dead.take()
        quick.submit(first, quick.learner(first))
        final = client.wait(run.run_id)
    assert final.state is RunState.READY, final.message
    assert final.learners[first.learner_index].state is LearnerState.DONE
    dropped = [item for item in final.learners if item.index != first.learner_index]
    assert {item.state for item in dropped} == {LearnerState.DROPPED}
    assert all("the deadline of 6 s has passed with 1 of 3" in item.message for item in dropped)
    assert final.costs is not None
    # How much later it was is for the machine to say; tests/coordinator/test_driver.py
    # shows with a clock of its own that the service means to be on time.
    assert final.costs.training_seconds >= DEADLINE_SECONDS
    slow.wait_for("is no longer needed")


def test_run_without_enough_fails_and_says_which_are_missing_and_why(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    overrides = straggling(cluster, small_run, min_learners=2)
    with cluster.client() as client, open_channel(cluster.address) as channel:
        run = client.start_run(overrides)
        quick = StubWorker(cluster.directory, channel, "quick")
        first = quick.take()
        dead = cluster.start_worker("dead")
        dead.wait_for("density")
        dead.stop(signal.SIGKILL)
        slow = cluster.start_worker("slow")
        slow.wait_for("density")
        quick.submit(first, quick.learner(first))
        with pytest.raises(RunFailedError) as caught:
            client.wait(run.run_id)
    sentence = str(caught.value)
    assert "the deadline of 6 s has passed with 1 of 3 learners in, min_learners is 2" in sentence
    assert "(waiting for a worker: worker dead was silent for 3 s)" in sentence
    assert "(at worker slow)" in sentence
