"""Workers that are there before their coordinator, or leave in the middle of a learner."""

from __future__ import annotations

import socket
from typing import Any

from lipt.common.states import RunState
from tests.cluster import Cluster


def test_worker_gives_its_learner_back_when_it_is_told_to_stop(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    cluster.start_coordinator()
    # So long that only giving it back can end it.
    learners = {"num_learners": 1, "num_steps": 100_000, "batch_size": 64}
    with cluster.client() as client:
        client.start_run({**small_run, "learners": learners})
        leaving = cluster.start_worker("leaving")
        leaving.wait_for("density")
        heir = cluster.play_worker("heir")
        assert leaving.stop() == 0
        heir.submit(heir.take())
        final = client.wait()
    assert final.state is RunState.READY, final.message
    assert final.learners[0].attempts == 2
    assert "gave" in leaving.text()


def test_worker_of_a_batch_system_says_by_its_status_whether_its_share_is_done(
    cluster: Cluster, small_run: dict[str, Any]
) -> None:
    cluster.start_coordinator()
    learners = {**small_run["learners"], "num_learners": 1}
    batch = ("--max-learners", "1", "--stopped-status", "143")
    with cluster.client() as client:
        told = cluster.start_worker("told", *batch)
        told.wait_for("joined")
        assert told.stop() == 143
        client.start_run({**small_run, "learners": learners})
        assert cluster.start_worker("done", *batch).wait() == 0
        assert client.wait().state is RunState.READY


def test_worker_that_was_first_joins_when_the_coordinator_comes_up(cluster: Cluster) -> None:
    with socket.socket() as taken:  # nobody else gets the port meanwhile, and nobody listens
        taken.bind(("127.0.0.1", 0))
        cluster.address = "{}:{}".format(*taken.getsockname())
        worker = cluster.start_worker("early")
        worker.wait_for("Trying again until")
    cluster.start_coordinator("--listen", cluster.address).wait_for("worker early .* joined")
    assert worker.stop() == 0


def test_worker_that_allows_a_module_which_it_lacks_says_so_at_its_start(cluster: Cluster) -> None:
    cluster.address = "127.0.0.1:1"
    worker = cluster.start_worker("vm", "--allow-module", "absent_module")
    assert "lipt-worker: --allow-module absent_module: there is no module" in worker.refused()
