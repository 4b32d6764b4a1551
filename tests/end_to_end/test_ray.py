"""A worker pool on a real Ray cluster of two nodes, of which one vanishes in a run's middle."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from lipt.common.states import LearnerState
from tests.cluster import SMALL_RUN, Cluster, children_of

pytest.importorskip("ray")

POOL = ("-c", "from lipt.worker.__main__ import pool; pool()")
# So long that a node can be ended while its worker has a learner.
LEARNERS = {"num_learners": 6, "num_steps": 40, "num_minibatches": 1, "batch_size": 32}


class RayNodes:
    """Two nodes on this machine, each with room for two workers; `doomed` is not the head."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        # It asks for no dashboard, and has a store as small as Ray allows.
        small: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
        self.cluster = RayCluster()
        self.cluster.add_node(include_dashboard=False, **small)
        self.doomed = self.cluster.add_node(**small)
        self.address = str(self.cluster.address)

    def processes_of_the_doomed(self) -> set[int]:
        (raylet,) = self.doomed.all_processes["raylet"]
        return with_descendants(raylet.process.pid)

    def vanish(self) -> None:
        """End the node like a machine that is switched off: without any message."""
        for pid in self.processes_of_the_doomed():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(self.doomed, allow_graceful=False)


def with_descendants(pid: int) -> set[int]:
    return {pid}.union(*map(with_descendants, children_of(pid)))


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayNodes]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")
    # Whatever this user's own clusters do; a local one makes a token in the home folder.
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    nodes = RayNodes()
    yield nodes
    nodes.cluster.shutdown()


def test_a_vanished_node_only_costs_time(cluster: Cluster, nodes: RayNodes) -> None:
    run = {**SMALL_RUN, "learners": LEARNERS, "seed": 7}
    coordinator = cluster.start_coordinator(*cluster.leases_of(2.0))
    with cluster.client() as client:
        plain_worker = cluster.start_worker("plain")
        plain = client.wait(client.start_run(run, name="plain").run_id)
        assert plain_worker.stop() == 0

        pool = cluster.start(
            "pool",
            [
                *(*POOL, "--coordinator", cluster.address, "--ray", nodes.address),
                *("--workers", "2", "--idle-seconds", "2"),
                *("--", "--cache-dir", str(cluster.directory / "cache")),
            ],
        )
        pool.wait_for("up to 2 workers")
        run_id = client.start_run(run, name="on-ray").run_id
        doomed = trained_on(client.watch(run_id), nodes.processes_of_the_doomed)
        nodes.vanish()
        coordinator.wait_for(f"event=lease_expired .*worker={doomed}")
        on_ray = client.wait(run_id)

        assert on_ray.pretrained_weights == plain.pretrained_weights
        assert [learner.result for learner in on_ray.learners] == [
            learner.result for learner in plain.learners
        ]
        subsets = [client.subset(name, "grand", fraction=0.1) for name in ("plain", "on-ray")]
        assert subsets[0].digest == subsets[1].digest
    # Nothing is to do any more.
    pool.wait_for("; 0 workers left|ending [12] workers?: there is no learner")
    assert pool.stop() == 0


def trained_on(views: Iterator[Any], processes: Callable[[], set[int]]) -> str:
    for view in views:
        for learner in view.learners:
            # Workers without a name are called after their host and process.
            pid = learner.worker.rpartition("-")[2]
            if learner.state is LearnerState.LEASED and pid.isdecimal() and int(pid) in processes():
                return str(learner.worker)
    raise AssertionError("the run ended before a worker of that node had a learner")
