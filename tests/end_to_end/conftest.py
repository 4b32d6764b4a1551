from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def one_of_two_in(cluster: Cluster) -> Iterator[tuple[Client, str, PlayedWorker]]:
    """A client, a run of two learners of which learner 0 is in, and the worker that did it."""
    learners = {**SMALL_RUN["learners"], "num_learners": 2}
    with cluster.client() as client:
        run = client.start_run({**SMALL_RUN, "learners": learners})
        worker = cluster.play_worker("w")
        first = worker.take()
        assert first.learner_index == 0
        worker.submit(first)
        yield client, run.run_id, worker
