"""The process that computes is killed (out of memory, say), or stands still."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from lipt.common.states import RunState
from tests.cluster import Cluster

RUN = {
    "model": "resnet8",
    "learners": {"num_learners": 3, "num_steps": 1, "batch_size": 32},
    "soup": {"num_alphas": 10, "batch_norm_examples": 256},
}


@pytest.mark.parametrize("stage", ["initializing", "merging"])
def test_run_goes_on_when_its_stage_loses_its_process(cluster: Cluster, stage: str) -> None:
    coordinator = cluster.start_coordinator()
    cluster.start_worker("worker")
    with cluster.client() as client:
        run = client.start_run(RUN)
        coordinator.wait_for(f": {stage}")
        assert coordinator.kill_computing() >= 1  # the cheap lane may be there as well
        final = client.wait(run.run_id)
        assert [learner.attempts for learner in final.learners] == [1, 1, 1]
        undisturbed = client.wait(client.start_run(RUN).run_id)
    coordinator.wait_for("event=retried detail=compute .*SIGKILL")
    assert final.pretrained_weights == undisturbed.pretrained_weights


def test_control_calls_are_answered_while_the_compute_process_stands_still(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    coordinator = cluster.start_coordinator()
    pids = coordinator.computing()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        with cluster.client() as client:
            run = client.start_run(small_run)
            cluster.play_worker("w")
            assert client.run(run.run_id).state in (RunState.PENDING, RunState.INITIALIZING)
            assert [worker.name for worker in client.info().workers] == ["w"]
            assert client.cancel(run.run_id).state is RunState.CANCELLED
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
