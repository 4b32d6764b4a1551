"""The process that computes is killed (out of memory, say): its stage is computed again."""

from __future__ import annotations

import pytest

from lipt.common.states import RunState
from tests.end_to_end.cluster import Cluster
from tests.faults.processes import computing, kill

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
        (child,) = computing(coordinator)
        kill(child)
        final = client.wait(run.run_id)
        assert final.state is RunState.READY, final.message
        assert [learner.attempts for learner in final.learners] == [1, 1, 1]
        undisturbed = client.wait(client.start_run(RUN).run_id)
    coordinator.wait_for("event=retried detail=compute .*SIGKILL")
    assert final.pretrained_weights == undisturbed.pretrained_weights
