"""Watching: the service that the tests look at, and the pages that they look at it with."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.cluster import Cluster, LoggedProcess

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
PATIENCE_MS = 120_000


def make_token(cluster: Cluster, role: str) -> dict[str, str]:
    """A token with its secret and its id."""
    made = cluster.lipt("token", "create", "--role", role, "--name", f"the {role}", "--json")
    assert made.returncode == 0, made.stderr
    token: dict[str, str] = json.loads(made.stdout)
    return token


@dataclass
class Watched:
    """A service with a page.

    tokens: by role.
    flags: of its coordinator, besides addresses.
    """

    cluster: Cluster
    coordinator: LoggedProcess
    url: str
    tokens: dict[str, str]
    flags: Sequence[str]

    def restart(self) -> None:
        """Serve again where it was served before."""
        listen = ["--listen", self.cluster.address, "--dashboard-listen", self.url.split("//")[1]]
        self.coordinator = self.cluster.start_coordinator(*self.flags, *listen)


@dataclass
class Watcher:
    """Opens pages, and keeps what their consoles say."""

    browser: Browser
    service: Watched
    _contexts: list[BrowserContext] = field(default_factory=list)
    _said: list[str] = field(default_factory=list)
    _expected: list[str] = field(default_factory=list)

    def open(
        self, role: str | None, path: str = "", *, width: int = 1440, scheme: Any = "light"
    ) -> Page:
        """A page of a browser that has signed in, at `#/path`; nobody has without a role."""
        context = self.browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            reduced_motion="reduce",
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
        """What a console may say: the browser notes every request that fails."""
        self._expected.append(pattern)

    def complaints(self) -> list[str]:
        """What consoles said and nobody expected."""
        expected = self._expected
        return [said for said in self._said if not any(re.search(one, said) for one in expected)]

    def close(self) -> None:
        """Close all pages."""
        for context in self._contexts:
            context.close()
