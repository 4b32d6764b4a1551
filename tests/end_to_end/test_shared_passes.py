"""Passes over the data that workers share, with real processes: the same subset to the bit."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from lipt.common.config.tasks import ScoringTask
from lipt.common.data import open_dataset
from lipt.common.inputs.specs import spec_of
from lipt.common.models import build_model, lay_out
from lipt.common.signals.passes import score_range
from lipt.common.weights.specs import Weights
from lipt.worker.client import Assignment
from tests.cluster import COORDINATOR, SMALL_RUN, Cluster, LoggedProcess
from tests.end_to_end.patient_coordinator import PATIENT
from tests.played_worker import PlayedWorker

pytest.importorskip("sklearn")

# At 32 x 32 a batch is of 64 digits, and the 1,797 are 15 ranges.
CONFIG = """
[dataset]
source = "digits"
image_size = 32
[compute]
scoring_range = 128
scoring_workers = "{who}"
"""
RUN = {
    **SMALL_RUN,
    "seed": 5,
    "evaluation_threads": 1,
    "learners": {"num_learners": 1, "num_steps": 1, "batch_size": 32, "num_minibatches": 1},
}


def serve(
    cluster: Cluster,
    who: str = "same",
    listen: str = "127.0.0.1:0",
    program: Sequence[str] = COORDINATOR,
) -> LoggedProcess:
    flags = cluster.config(CONFIG.format(who=who))
    source = ("--data", "digits", "--listen", listen)
    return cluster.start_coordinator(*source, *flags, program=program)


def subset_digest(cluster: Cluster) -> str:
    with cluster.client() as client:
        return client.subset(strategy="craig", fraction=0.1).digest


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A state directory with a run that is ready, and the digest of a subset that nobody shared."""
    directory = tmp_path_factory.mktemp("alone")
    with Cluster(directory) as cluster:
        coordinator = serve(cluster, "none")
        cluster.start_worker("one")
        with cluster.client() as client:
            client.wait(client.start_run(dict(RUN)).run_id)
        coordinator.stop()
        kept = directory / "kept"
        shutil.copytree(cluster.state, kept)
        serve(cluster, "none")
        return kept, subset_digest(cluster)


@pytest.fixture
def digest(cluster: Cluster, alone: tuple[Path, str]) -> str:
    """That run lies in the test's own state directory; of the subset that nobody has asked for."""
    kept, digest = alone
    shutil.copytree(kept, cluster.state)
    return digest


def scored(worker: PlayedWorker, assignment: Assignment) -> Weights:
    task = assignment.task
    assert isinstance(task, ScoringTask)
    model = build_model(
        task.model, num_classes=task.num_classes, inputs=spec_of(task.inputs), seed=0
    )
    model = lay_out(model, task.model, torch.device("cpu"))
    model.load_state_dict(worker.weights(assignment))
    data = open_dataset("digits", image_size=32)
    return score_range(model.eval(), data, task, device=torch.device("cpu"))


def test_workers_that_have_the_data_take_ranges_and_the_subset_is_the_same(
    cluster: Cluster, digest: str
) -> None:
    coordinator = serve(cluster, program=PATIENT)
    cluster.start_worker("blind").wait_for("joined")
    cluster.start_worker("seeing", "--worker-data", "digits").wait_for("joined")
    assert subset_digest(cluster) == digest
    assert int(coordinator.wait_for(r"of 15 ranges, (\d+) by 1 workers")[1]) > 0


def test_a_worker_that_vanishes_and_one_that_lies_change_nothing(
    cluster: Cluster, digest: str
) -> None:
    coordinator = serve(cluster)
    vanishing, liar, honest = (
        cluster.play_worker(name, has_data=True) for name in ("vanishing", "liar", "honest")
    )
    with ThreadPoolExecutor() as threads:
        wanted = threads.submit(subset_digest, cluster)
        vanishing.take()
        lied, right = liar.take(), honest.take()
        values = scored(honest, right)
        honest.submit_range(right, values)
        liar.submit_range(lied, {name: value + 0.5 for name, value in values.items()})
        assert wanted.result() == digest
    coordinator.wait_for("has sent signals that its examples do not have: all of its 1 ranges")
    assert coordinator.wait_for(r"of 15 ranges, (\d+) by (\d+) workers").groups() == ("1", "1")


@pytest.mark.smoke
def test_what_was_acknowledged_outlives_a_coordinator_that_is_killed(
    cluster: Cluster, digest: str
) -> None:
    coordinator = serve(cluster)
    worker = cluster.play_worker("one", has_data=True)
    with ThreadPoolExecutor() as threads:
        wanted = threads.submit(subset_digest, cluster)
        held = worker.take()
        worker.submit_range(held, scored(worker, held))
        coordinator.stop(signal.SIGKILL)
        again = serve(cluster, listen=cluster.address)
        assert wanted.result() == digest
    assert again.wait_for(r"of 15 ranges, (\d+) by 1 workers")[1] == "1"
