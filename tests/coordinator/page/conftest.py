import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from lipt.common.access import Role
from lipt.coordinator.access.caller import ANYBODY
from lipt.coordinator.app import App
from lipt.coordinator.server import serving
from lipt.v1 import access_pb2, access_pb2_grpc
from tests.coordinator.fakes import FakeCompute, make_settings, opened
from tests.serving import own_user_channel

# Of the fake's data: fifty of each class.
LABELS = np.repeat(np.arange(10), 50)


@dataclass(frozen=True)
class ServedPage:
    """A coordinator with a page; `link` signs in one browser as the coordinator's own user."""

    app: App
    address: str
    link: str

    @property
    def url(self) -> str:
        parts = urlsplit(self.link)
        return f"{parts.scheme}://{parts.netloc}"

    @asynccontextmanager
    async def browser(self, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
        """A client without a session, whose requests come from the page."""
        headers = {"Origin": self.url, "Content-Type": "Application/JSON; charset=utf-8"}
        async with httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=20.0, trust_env=False, **options
        ) as browser:
            yield browser

    @asynccontextmanager
    async def signed_in(self, role: Role) -> AsyncIterator[httpx.AsyncClient]:
        async with self.browser() as browser:
            _, token = await self.app.tokens.create(role, name="", days=0, creator=ANYBODY)
            answer = await browser.post("/api/sign-in", json={"token": token})
            assert answer.status_code == 200, answer.text
            yield browser


@asynccontextmanager
async def page_served(
    directory: Path, compute: FakeCompute | None = None, **flags: Any
) -> AsyncIterator[ServedPage]:
    settings = make_settings(directory, dashboard_listen="127.0.0.1:0", **flags)
    async with opened(settings, compute) as app:
        app.data = replace(app.data, labels=LABELS.astype("<i4").tobytes())
        async with serving(app) as address, own_user_channel(address) as channel:
            stub: Any = access_pb2_grpc.AccessServiceStub(channel)
            opened_page = await stub.OpenPage(access_pb2.OpenPageRequest())
            yield ServedPage(app, address, opened_page.url)


def lines_of(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[ServedPage]:
    async with page_served(tmp_path) as served:
        yield served
