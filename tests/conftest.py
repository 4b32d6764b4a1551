"""What several tests share: where the real images are, real processes, and a browser."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from tests.cluster import Cluster
from tests.processes import end_template
from tests.properties import register_profiles

if TYPE_CHECKING:
    from playwright.sync_api import Browser

register_profiles()

_HANDLERS = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}

# What starts whole processes of the product; everything in end_to_end/ does.
_PROCESSES = frozenset({"cluster", "demo", "run_alone", "served"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "end_to_end" in item.path.parts or _PROCESSES.intersection(fixtures):
            item.add_marker(pytest.mark.processes)


def pytest_configure() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    # As a terminal starts a program: in the background, or under nohup, these may be ignored.
    for number, handler in _HANDLERS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_unconfigure() -> None:
    end_template()


@pytest.fixture(scope="session")
def cifar10_jpeg() -> Path:
    """The folder of CIFAR-10 as JPEG in parquet files, in $LIPT_DATA or beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("LIPT_DATA", beside))
    folder = root / "cifar10-jpeg"
    if not (folder / "train.parquet").is_file():
        pytest.skip(f"no cifar10-jpeg/train.parquet in {root}; set LIPT_DATA to a folder with it")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window; while it is there, no other event loop can run here."""
    api = pytest.importorskip("playwright.sync_api", reason="the dev extra brings playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster
