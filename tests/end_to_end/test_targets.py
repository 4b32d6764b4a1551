"""Subsets for a target with workers that have the data: the library's bits, whatever they do."""

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import lipt
from lipt.common.config.run_config import merge
from lipt.common.errors import ForeignBlobError, StaleLeaseError
from lipt.common.tensor_files import Weights
from lipt.core.passes import score_range
from lipt.core.tasks import ScoredValues, ScoringTask
from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import spec_of
from lipt.models.registry import build_model
from lipt.trainer.subsets.subset import Subset
from lipt.worker.client import Assignment
from tests.cluster import Cluster, LoggedProcess
from tests.end_to_end.test_compute import standing_still
from tests.lipt.test_target_selection import words, written
from tests.played_worker import PlayedWorker

# Batches of 64 texts: five ranges.
NUM_EXAMPLES, RANGE = 300, 64
CONFIG = f"[compute]\nscoring_range = {RANGE}\nverified_share = 0.5\n"
QUICK = {
    "initialization": {"steps": 3, "batch_size": 16},
    "learners": {"batch_size": 16},
    "evaluation_threads": 1,
}
ASKED: dict[str, Any] = {"strategy": "loss_drop", "budget": 30, "options": {"steps": 2}}


def texts(folder: Path, name: str, number: int, seed: int) -> str:
    address = written(folder, name, [(word, word.upper()) for word in words(number, seed)])
    return address.replace("max_length=12", "max_length=128")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> str:
    return texts(tmp_path_factory.mktemp("pool"), "pool", NUM_EXAMPLES, seed=1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return texts(tmp_path_factory.mktemp("target"), "target", 20, seed=2)


@pytest.fixture(scope="module")
def here(pool: str, target: str) -> Subset:
    """The library's subset."""
    return lipt.select(pool, target_data=target, run=QUICK, device="cpu", progress=False, **ASKED)


def serve(cluster: Cluster, pool: str, listen: str = "127.0.0.1:0") -> LoggedProcess:
    flags = ["--data", pool, "--model", "text:causal", "--listen", listen]
    return cluster.start_coordinator(*flags, *cluster.config(CONFIG))


def pretrain(cluster: Cluster) -> None:
    with cluster.client() as client:
        client.wait(client.start_run(merge(client.settings_for("target"), QUICK)).run_id)


@contextmanager
def request(cluster: Cluster, target: str) -> Iterator[Future[Subset]]:
    """A request for the subset that has been sent."""

    def ask() -> Subset:
        with cluster.client() as client:
            return client.subset(target_data=target, **ASKED)

    with ThreadPoolExecutor() as threads:
        yield threads.submit(ask)


def values_of(held: Assignment) -> ScoredValues:
    assert isinstance(held.task, ScoringTask)
    return held.task.values


def scored(worker: PlayedWorker, held: Assignment, data: Dataset) -> Weights:
    task = held.task
    assert isinstance(task, ScoringTask)
    inputs = spec_of(task.inputs)
    model = build_model(task.model, num_classes=task.num_classes, inputs=inputs, seed=0)
    model.load_state_dict(worker.weights(held))
    return score_range(model.eval(), data, task, device=torch.device("cpu"))


def test_killed_processes_do_not_change_the_subset(
    cluster: Cluster, pool: str, target: str, here: Subset
) -> None:
    coordinator = serve(cluster, pool)
    worker = cluster.start_worker("seeing", "--worker-data", pool)
    pretrain(cluster)
    gone = cluster.play_worker("gone", has_data=True)
    with request(cluster, target) as answer:
        held = gone.take()
        assert values_of(held) is ScoredValues.LOSSES_AND_FEATURES
        with standing_still(coordinator.computing()):
            worker.wait_for(r"scan-\w+/\d+ is in: 64 examples")
            worker.stop(signal.SIGKILL)
            coordinator.send(signal.SIGKILL)
        coordinator.wait()
        again = serve(cluster, pool, cluster.address)
        cluster.start_worker("another", "--worker-data", pool)
        found = answer.result()
    # What was acknowledged is not scored again.
    again.wait_for(r"losses_and_features of 300 .* of 5 ranges, [1-4] by workers of 1 credentials")
    assert found.digest == here.digest
    assert found.findings == here.findings


def test_a_faulty_worker_does_not_change_the_subset(
    cluster: Cluster, pool: str, target: str, here: Subset
) -> None:
    coordinator, data = serve(cluster, pool), lipt.open_dataset(pool)
    cluster.start_worker("one")
    pretrain(cluster)
    with cluster.client() as client:
        tokens = [client.create_token("worker", scores=True) for _ in range(2)]
    honest, faulty = (
        cluster.play_worker(name, has_data=True, token=token.secret)
        for name, token in zip(("honest", "faulty"), tokens, strict=True)
    )
    with request(cluster, target) as answer:
        # Both send what is right of theta*.
        held = honest.take(), faulty.take()
        with standing_still(coordinator.computing()):
            for worker, one in zip((honest, faulty), held, strict=True):
                assert values_of(one) is ScoredValues.LOSSES_AND_FEATURES
                worker.submit_range(one, scored(worker, one, data), data)
        after = honest.take()
        while values_of(after) is not ScoredValues.LOSSES:
            # The job may be faster.
            with suppress(StaleLeaseError, ForeignBlobError):
                honest.submit_range(after, scored(honest, after, data), data)
            after = honest.take()
        forged = faulty.take()
        with standing_still(coordinator.computing()):
            assert values_of(forged) is ScoredValues.LOSSES
            assert after.initial_weights == forged.initial_weights != held[0].initial_weights
            honest.submit_range(after, scored(honest, after, data), data)
            values = scored(faulty, forged, data)
            faulty.submit_range(forged, {"losses": values["losses"] * 0.5}, data)
        found = answer.result()
    coordinator.wait_for(r"token-\S+ has sent values .* 1 kept files with its scores are removed")
    assert found.digest == here.digest
    scored_by = found.manifest["scored_by"]
    # Of theta* everything is scored again, here: two passes of 300.
    (credential,) = scored_by["credentials"]
    assert credential["credential"].startswith(f"token-{tokens[0].token.token_id}-")
    assert (credential["num_examples"], scored_by["num_here"]) == (64, 600 - 64)
