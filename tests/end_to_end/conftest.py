"""Fixtures of the tests that run real processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


@pytest.fixture
def small_run() -> dict[str, object]:
    """A run's overrides that are done in seconds."""
    return dict(SMALL_RUN)
