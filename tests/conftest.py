"""What several tests share: where the real images are, and real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import SMALL_RUN, Cluster


@pytest.fixture(scope="session")
def cifar10_jpeg() -> Path:
    """The folder of CIFAR-10 as JPEG in parquet files, in $LIPT_DATA or beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("LIPT_DATA", beside))
    folder = root / "cifar10-jpeg"
    if not (folder / "train.parquet").is_file():
        pytest.skip(f"no cifar10-jpeg/train.parquet in {root}; set LIPT_DATA to a folder with it")
    return folder


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Processes that end with the test."""
    with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def small_run() -> dict[str, object]:
    """A run's overrides that are done in seconds."""
    return dict(SMALL_RUN)
