"""A live service with hostile names in it, and browsers that look at its page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lipt.common.config.run_config import PRESETS, merge
from tests.cluster import SMALL_RUN, WORKER, Cluster, LoggedProcess
from tests.other_digits import LABELS_N, write_digits

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

HOSTILE_WORKER = "<script>alert(1)</script>"
HOSTILE_RUN = "<img src=x onerror=alert(2)>"
HOSTILE_CLASSES = (
    "<img src=x onerror=alert(3)>",
    "<svg onload=alert(4)>",
    "{{alert(5)}}",
    "javascript:alert(6)",
)
HOSTILE_SOURCE = "<b>night"
BY_SOURCE = merge(
    PRESETS["mixture"],
    {
        "model": "resnet8",
        "initialization": {"steps": 5, "batch_size": 16},
        "learners": {"num_minibatches": 2, "batch_size": 16},
    },
)
PATIENCE_MS = 120_000


def make_token(cluster: Cluster, role: str) -> dict[str, str]:
    made = cluster.lipt("token", "create", "--role", role, "--name", f"the {role}", "--json")
    assert made.returncode == 0, made.stderr
    token: dict[str, str] = json.loads(made.stdout)
    return token


@dataclass
class Watched:
    cluster: Cluster
    coordinator: LoggedProcess
    url: str
    tokens: dict[str, str]
    flags: Sequence[str]
    target: Path

    def restart(self) -> None:
        listen = ["--listen", self.cluster.address, "--dashboard-listen", self.url.split("//")[1]]
        self.coordinator = self.cluster.start_coordinator(*self.flags, *listen)


@dataclass
class Watcher:
    browser: Browser
    service: Watched
    _contexts: list[BrowserContext] = field(default_factory=list)
    _said: list[str] = field(default_factory=list)
    _expected: list[str] = field(default_factory=list)

    def open(
        self, role: str | None, path: str = "", *, width: int = 1440, scheme: Any = "light"
    ) -> Page:
        """A page of a browser that has signed in, at `#/path`; without a role it has not."""
        context = self.browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        url = self.service.url
        if role is not None:
            token = {"token": self.service.tokens[role]}
            told = context.request.post(f"{url}/api/sign-in", data=token, headers={"Origin": url})
            assert told.ok, told.text()
        page = context.new_page()
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("pageerror", lambda error: self._said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self._said.append(f"dialog: {dialog.message}"))
        page.goto(f"{url}/#/{path}")
        page.locator("h1").wait_for()
        return page

    def _hear(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self._said.append(f"{kind}: {text}")

    def expect(self, pattern: str) -> None:
        self._expected.append(pattern)

    def complaints(self) -> list[str]:
        expected = self._expected
        return [said for said in self._said if not any(re.search(one, said) for one in expected)]

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture(scope="module")
def service(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("page")
    with Cluster(directory) as cluster:
        rows = {row: label for row, label in enumerate(LABELS_N[:800].tolist()) if label < 4}
        images = directory / "images"
        for row, label in rows.items():
            source = "day" if row % 3 else HOSTILE_SOURCE
            write_digits(images / source, {row: HOSTILE_CLASSES[label]})
        flags = ["--data", f"imagefolder:{images}?source=folder"]
        coordinator = cluster.start_coordinator(*flags, "--dashboard-listen", "127.0.0.1:0")
        url = coordinator.wait_for(r"the page is at (\S+):")[1]
        tokens = {role: make_token(cluster, role)["secret"] for role in ("admin", "trainer")}
        cluster.start_worker("one")
        own = ["--coordinator", cluster.address, "--device", "cpu", "--name", HOSTILE_WORKER]
        cluster.start("hostile", [*WORKER, *own, "--cache-dir", str(directory / "cache")])
        yield Watched(cluster, coordinator, url, tokens, flags, images / "day")


@pytest.fixture
def watcher(browser: Browser, service: Watched) -> Iterator[Watcher]:
    opened = Watcher(browser, service)
    yield opened
    opened.close()
    assert opened.complaints() == []


@pytest.fixture
def page(watcher: Watcher) -> Any:
    return watcher.open("admin")


@pytest.fixture(scope="module")
def ready(service: Watched) -> str:
    with service.cluster.client() as client:
        run = client.start_run(dict(SMALL_RUN), name="first")
        return client.wait(run.run_id).run_id


@pytest.fixture(scope="module")
def mixed(service: Watched) -> str:
    """A ready run by source, with a mixture."""
    with service.cluster.client() as client:
        run = client.wait(client.start_run(BY_SOURCE, name="by source").run_id)
        client.mixture(run.run_id, f"imagefolder:{service.target}")
    return run.run_id
