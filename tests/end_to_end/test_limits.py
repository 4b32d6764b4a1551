"""Requests that ask for more than there is: of a worker, of the compute process, of a machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lipt.common.errors import RunFailedError
from lipt.common.states import LearnerState, RunState
from tests.cluster import Cluster
from tests.end_to_end.doomed_worker import DEADLY

SMALL = {"num_learners": 1, "num_steps": 1, "batch_size": 16}
RUN = {"model": "resnet8", "soup": {"num_alphas": 1, "batch_norm_examples": 16}}
DOOMED_WORKER = (str(Path(__file__).with_name("doomed_worker.py")),)


def test_run_that_ends_its_workers_does_not_starve_the_one_behind_it(cluster: Cluster) -> None:
    coordinator = cluster.start_coordinator(*cluster.leases_of(1.0))
    with cluster.client() as client:
        # So many that there is always one of them to be had.
        deadly = {**SMALL, "num_learners": 50, "learning_rate": DEADLY}
        client.start_run({**RUN, "learners": deadly}, name="deadly")
        client.start_run({**RUN, "learners": SMALL}, name="good")
        workers = cluster.start_worker("box", program=DOOMED_WORKER)
        assert client.wait("good").state is RunState.READY
        coordinator.wait_for("event=learner_quarantined run=deadly .*3 workers in a row")
        run = client.run("deadly")
    assert run.state is RunState.TRAINING
    assert re.search(r"in quarantine: \d+ workers in a row \(last box", run.waiting)
    assert "in quarantine: " in cluster.lipt("run", "show", "deadly").stdout
    # Nobody's failures; and some were never tried.
    assert {item.state for item in run.learners} <= {LearnerState.QUEUED, LearnerState.LEASED}
    assert workers.text().count("a worker ended with 9") < 50


def test_learner_that_is_too_much_for_a_worker_goes_to_another(cluster: Cluster) -> None:
    cluster.start_coordinator()
    small = cluster.start_worker("small", "--max-threads", "1")
    small.wait_for("joined")
    with cluster.client() as client:
        learners = {**SMALL, "num_learners": 2, "cpu_threads": 2}
        run = client.start_run({**RUN, "learners": learners})
        small.wait_for(r"is not for this worker: .* 2 threads, over .*--max-threads = 1 thr")
        small.wait_for("gave .* back")
        waiting = client.run(run.run_id).learners[0]
        assert "worker small gave it back: learners.cpu_threads = 2" in waiting.message
        large = cluster.play_worker("large")
        for _ in range(2):
            large.submit(large.take())
        final = client.wait(run.run_id)
    assert final.state is RunState.READY, final.message
    # No attempt of its own, and it was not asked again.
    assert small.text().count("is not for this worker") == 1
    assert [learner.worker for learner in final.learners] == ["large"] * 2


def test_compute_process_is_refused_more_memory_than_it_may_take(cluster: Cluster) -> None:
    flags = ("--model", "tests.tiny:greedy", "--compute-memory", "1600MB")
    coordinator = cluster.start_coordinator(*flags)
    with cluster.client() as client:
        initialization = {"steps": 1, "batch_size": 16}
        run = client.start_run({"learners": SMALL, "initialization": initialization})
        with pytest.raises(RunFailedError) as failed:
            client.wait(run.run_id)
        assert "InitializeWeights ran out of memory: RuntimeError" in str(failed.value)
        assert "may take 1.6 GB (limits.compute_memory)" in str(failed.value)
        # The others go on, in the same process.
        assert client.start_run({"learners": SMALL}).state is RunState.PENDING
    assert "event=retried detail=compute" not in coordinator.text()
