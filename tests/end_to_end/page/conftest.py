"""Fixtures: a live service with hostile names in it, and a browser that looks at its page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.cluster import SMALL_RUN, WORKER, Cluster
from tests.end_to_end.page.watched import (
    HOSTILE_CLASSES,
    HOSTILE_WORKER,
    Watched,
    Watcher,
    make_token,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_OF_EACH_CLASS = 80


def _images(folder: Path) -> Path:
    """Small digits of four classes, each in a folder of its class' name."""
    values, labels = load_digits(return_X_y=True)
    for label, name in enumerate(HOSTILE_CLASSES):
        (folder / name).mkdir(parents=True)
        for row in np.flatnonzero(labels == label)[:_OF_EACH_CLASS]:
            pixels = (values[row].reshape(8, 8) * 15).astype("uint8")
            Image.fromarray(pixels).save(folder / name / f"{row:04}.png")
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


@pytest.fixture(scope="module")
def service(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """One coordinator with a page, and two workers, one of a name that is markup."""
    directory = tmp_path_factory.mktemp("page")
    with Cluster(directory) as cluster:
        flags = ["--data", f"imagefolder:{_images(directory / 'images')}"]
        coordinator = cluster.start_coordinator(*flags, "--dashboard-listen", "127.0.0.1:0")
        url = coordinator.wait_for(r"the page is at (\S+):")[1]
        tokens = {role: make_token(cluster, role)["secret"] for role in ("admin", "trainer")}
        cluster.start_worker("one")
        own = ["--coordinator", cluster.address, "--device", "cpu", "--name", HOSTILE_WORKER]
        cluster.start("hostile", [*WORKER, *own, "--cache-dir", str(directory / "cache")])
        yield Watched(cluster, coordinator, url, tokens, flags)


@pytest.fixture
def watcher(browser: Browser, service: Watched) -> Iterator[Watcher]:
    """Opens the page; at the end nothing may have been said on any console."""
    opened = Watcher(browser, service)
    yield opened
    opened.close()
    assert opened.complaints() == []


@pytest.fixture
def page(watcher: Watcher) -> Any:
    """The page as an admin sees it."""
    return watcher.open("admin")


@pytest.fixture(scope="module")
def ready(service: Watched) -> str:
    """The id of a run that is ready."""
    with service.cluster.client() as client:
        run = client.start_run(dict(SMALL_RUN), name="first")
        return client.wait(run.run_id).run_id
