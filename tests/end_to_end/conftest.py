"""Fixtures of the tests that run real processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.cluster import Cluster

# Small enough for two busy cores, large enough to be the whole pipeline.
SMALL_RUN: Mapping[str, object] = {
    "model": "resnet8",
    "learners": {"num_learners": 4, "num_steps": 2, "batch_size": 32},
    "soup": {"num_alphas": 3, "batch_norm_examples": 64},
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.end()


@contextmanager
def cluster_with_a_run(directory: Path) -> Iterator[Cluster]:
    """One coordinator and one worker, with a run "first" that is ready."""
    cluster = Cluster(directory)
    try:
        cluster.start_coordinator()
        cluster.start_worker("one")
        with cluster.client() as client:
            client.wait(client.start_run(dict(SMALL_RUN), name="first").run_id)
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
def small_run() -> dict[str, object]:
    """A run's overrides that are done in seconds."""
    return dict(SMALL_RUN)
