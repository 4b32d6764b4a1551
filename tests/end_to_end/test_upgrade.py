"""Workers of an earlier minor version of the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lipt.common.rpc.protocol import PROTOCOL_MAJOR, PROTOCOL_MINOR
from lipt.common.states import RunState
from tests.cluster import Cluster

OLD_WORKER = Path(__file__).parent / "old_worker.py"


def test_worker_of_the_contract_s_first_minor_completes_the_same_run(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    assert PROTOCOL_MAJOR == 1
    assert PROTOCOL_MINOR > 0
    # An older worker knows of no token.
    cluster.start_coordinator("--insecure")
    old = cluster.start_worker("old", program=[str(OLD_WORKER)], fresh=True)
    with cluster.client() as client:
        by_old = client.wait(client.start_run(small_run).run_id)
        assert by_old.state is RunState.READY, by_old.message
        assert {learner.worker for learner in by_old.learners} == {"old"}
        assert old.stop() == 0
        cluster.start_worker("new")
        by_new = client.wait(client.start_run(small_run).run_id)
        assert {learner.worker for learner in by_new.learners} == {"new"}
    assert by_new.pretrained_weights == by_old.pretrained_weights
    assert [item.result for item in by_new.learners] == [item.result for item in by_old.learners]
