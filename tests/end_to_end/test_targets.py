"""Subsets for a target with workers that have the data: the library's bits, whatever they do."""

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lipt
from lipt.common.config.run_config import merge
from lipt.core.tasks import ScoredValues, ScoringTask
from lipt.trainer.subsets.subset import Subset
from tests.cluster import Cluster, LoggedProcess
from tests.end_to_end.test_compute import standing_still
from tests.lipt.test_target_selection import words, written

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


def test_killed_processes_do_not_change_the_subset(
    cluster: Cluster, pool: str, target: str, here: Subset
) -> None:
    coordinator = serve(cluster, pool)
    worker = cluster.start_worker("seeing", "--worker-data", pool)
    pretrain(cluster)
    gone = cluster.play_worker("gone", has_data=True)
    with request(cluster, target) as answer:
        held = gone.take()
        assert isinstance(held.task, ScoringTask)
        assert held.task.values is ScoredValues.LOSSES_AND_FEATURES
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
