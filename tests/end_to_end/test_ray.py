"""A worker pool on a real Ray cluster of two nodes, of which one vanishes in a run's middle."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lipt.common.states import LearnerState, RunState
from tests.cluster import Cluster
from tests.ray_nodes import RayNodes, two_nodes

pytest.importorskip("ray")

POOL = ("-m", "lipt.worker.pool")
# So long that a node can be ended while its worker has a learner.
LEARNERS = {"num_learners": 6, "num_steps": 40, "batch_size": 32}


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    with two_nodes() as nodes:
        yield nodes


def test_node_that_vanishes_with_its_learners_costs_nothing_but_time(
    cluster: Cluster, nodes: RayNodes, small_run: dict[str, Any]
) -> None:
    run = {**small_run, "learners": LEARNERS, "seed": 7}
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

        assert on_ray.state is RunState.READY, on_ray.message
        assert on_ray.pretrained_weights == plain.pretrained_weights
        assert [learner.result for learner in on_ray.learners] == [
            learner.result for learner in plain.learners
        ]
        subsets = [client.subset(name, "grand", fraction=0.1) for name in ("plain", "on-ray")]
        assert subsets[0].digest == subsets[1].digest
    # Nothing is to do any more.
    pool.wait_for("; 0 workers left|ending [12] workers?: there has been no learner")
    assert pool.stop() == 0


def trained_on(views: Iterator[Any], processes: Callable[[], set[int]]) -> str:
    """A worker that has a learner, by its name, as soon as one is among these processes."""
    for view in views:
        for learner in view.learners:
            # Workers without a name are called after their host and process.
            pid = learner.worker.rpartition("-")[2]
            if learner.state is LearnerState.LEASED and pid.isdecimal() and int(pid) in processes():
                return str(learner.worker)
    raise AssertionError("the run ended before a worker of that node had a learner")


# A pass over the digits of some ten seconds for three processes, in 29 ranges.
LONG_PASS = """
[lease]
duration_seconds = 2.0
[dataset]
source = "digits"
image_size = 128
[compute]
scoring_range = 64
"""


def test_node_that_vanishes_with_its_ranges_changes_no_subset(
    cluster: Cluster, nodes: RayNodes, small_run: dict[str, Any]
) -> None:
    one = {"num_learners": 1, "num_steps": 1, "batch_size": 16, "num_minibatches": 1}
    run = {**small_run, "learners": one, "seed": 7, "evaluation_threads": 1}
    cluster.start_coordinator("--data", "digits", *cluster.config(LONG_PASS))
    with cluster.client() as client, ThreadPoolExecutor() as threads:
        blind = cluster.start_worker("blind")
        for name in ("alone", "on-ray"):
            client.wait(client.start_run(run, name=name).run_id)
        assert blind.stop() == 0
        alone = client.subset("alone", "grand", fraction=0.1)
        # Both runs have the same weights: what was computed for one would do for the other.
        shutil.rmtree(cluster.state / "signals")

        pool = cluster.start(
            "pool",
            [
                *(*POOL, "--coordinator", cluster.address, "--ray", nodes.address),
                *("--workers", "2", "--min-workers", "2", "--", "--worker-data", "digits"),
                *("--cache-dir", str(cluster.directory / "cache")),
            ],
        )
        views = client.watch_service(interval_seconds=0.2)
        next(view for view in views if sum(one.name != "blind" for one in view.workers) == 2)
        wanted = threads.submit(client.subset, "on-ray", "grand", fraction=0.1)
        wait_for_a_range(views, nodes)
        nodes.vanish()
        assert wanted.result().digest == alone.digest
    assert pool.stop() == 0


def wait_for_a_range(views: Iterator[Any], nodes: RayNodes) -> None:
    """Return as soon as a worker on the node that is doomed has a range."""
    for view in views:
        for worker in view.workers:
            pid = worker.name.rpartition("-")[2]
            scores = worker.assignment.startswith("examples") and pid.isdecimal()
            if scores and int(pid) in nodes.processes_of_the_doomed():
                return
    raise AssertionError("no worker of that node had a range")
