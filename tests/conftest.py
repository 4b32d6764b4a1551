"""What several tests share: where the real images are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cifar10_jpeg() -> Path:
    """The folder of CIFAR-10 as JPEG in parquet files, in $LIPT_DATA or beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("LIPT_DATA", beside))
    folder = root / "cifar10-jpeg"
    if not (folder / "train.parquet").is_file():
        pytest.skip(f"no cifar10-jpeg/train.parquet in {root}; set LIPT_DATA to a folder with it")
    return folder
