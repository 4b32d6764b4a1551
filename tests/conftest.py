"""What several tests share: where the real images are, and real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import SMALL_RUN, Cluster


def pytest_configure() -> None:
    """Let processes that tests start hear Ctrl-C: a shell has its background jobs ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
