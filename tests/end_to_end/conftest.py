from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lipt import Client
from tests.cluster import SMALL_RUN, Cluster
from tests.played_worker import PlayedWorker


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start_coordinator()
        cluster.start_worker("one")
        with cluster.client() as client:
            client.wait(client.start_run(dict(SMALL_RUN), name="first").run_id)
        yield cluster


@pytest.fixture
def client(ready: Cluster) -> Iterator[Client]:
    with ready.client() as opened:
        yield opened


def small_run(**learners: Any) -> dict[str, Any]:
    """The smallest run, with these settings of its learners."""
    return {**SMALL_RUN, "learners": {**SMALL_RUN["learners"], **learners}}


@contextmanager
def one_of_two_in(cluster: Cluster) -> Iterator[tuple[Client, str, PlayedWorker]]:
    """A client, a run of two learners of which learner 0 is in, and the worker that did it."""
    with cluster.client() as client:
        run = client.start_run(small_run(num_learners=2))
        worker = cluster.play_worker("w")
        first = worker.take()
        assert first.learner_index == 0
        worker.submit(first)
        yield client, run.run_id, worker
