"""What listens for browsers, on a real port of this process."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from lipt.common.access.roles import Role
from lipt.common.errors import ConfigError
from lipt.common.network.tls import TlsFiles
from lipt.coordinator.page import requests
from lipt.coordinator.page.requests import Streaming
from lipt.coordinator.page.serving import PageServer
from tests.coordinator.page.browsing import ServedPage, page_served
from tests.tls_files import write_files

WATCH = "/api/InfoService/WatchService"


def watch(browser: httpx.AsyncClient) -> Any:
    return browser.stream("POST", WATCH, content=b"{}")


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["scheme"].encode()})


@asynccontextmanager
async def started(
    tls: TlsFiles | None = None, application: Any = hello
) -> AsyncIterator[PageServer]:
    server = PageServer("127.0.0.1:0", tls)
    await server.start(application, drain_seconds=5.0)
    try:
        yield server
    finally:
        await server.stop()


async def asked(url: str, authority: trustme.CA | None = None) -> str:
    context = ssl.create_default_context()
    if authority is not None:
        authority.configure_trust(context)
    async with httpx.AsyncClient(verify=context, trust_env=False) as browser:
        return (await browser.get(url)).text


async def test_page_is_served_in_the_clear_until_it_is_stopped() -> None:
    async with started() as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert await asked(server.url) == "http"
    with pytest.raises(httpx.ConnectError):
        await asked(server.url)


async def test_https_asks_browsers_for_no_certificate_and_follows_renewed_files(
    tmp_path: Path,
) -> None:
    first, second = trustme.CA(), trustme.CA()
    files = write_files(tmp_path / "tls", first)
    assert files.ca is not None
    async with started(files) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        assert await asked(server.url, first) == "https"
        write_files(tmp_path / "tls", second)
        assert await asked(server.url, second) == "https"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await asked(server.url, first)


async def test_address_that_is_taken_is_named_with_its_flag() -> None:
    async with started() as server:
        with pytest.raises(ConfigError, match=rf"--dashboard-listen 127\.0\.0\.1:{server.port}: "):
            PageServer(f"127.0.0.1:{server.port}", None)


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[ServedPage]:
    async with page_served(tmp_path) as served:
        yield served


async def events(answer: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
    async for line in answer.aiter_lines():
        yield json.loads(line)


async def test_runs_are_told_in_full_and_then_as_they_change(page: ServedPage) -> None:
    async with (
        page.signed_in(Role.ADMIN) as browser,
        watch(browser) as answer,
    ):
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        told = events(answer)
        assert (await anext(told))["num_runs"] == 0
        await browser.post("/api/runs", json={"name": "<script>"})
        event = await anext(told)
    assert event["runs"][0]["name"] == "<script>"
    assert event["now"].endswith("Z")


async def test_stream_ends_with_its_session(page: ServedPage) -> None:
    async with (
        page.signed_in(Role.TRAINER) as browser,
        watch(browser) as told,
    ):
        each = events(told)
        await anext(each)
        (record,) = page.app.tokens.listed()
        await page.app.tokens.revoke(record.token_id)
        # What happens is not told any more.
        page.app.dispatcher.workers.register(
            "w", name="w", device="cpu", versions={}, allowed_modules=()
        )
        assert [event async for event in each] == []


async def test_a_peer_has_so_many_streams_at_once_and_another_its_own(tmp_path: Path) -> None:
    limits = {"per_peer": {"max_streams": 3}}
    async with page_served(tmp_path, limits=limits) as page, AsyncExitStack() as stack:
        browser = await stack.enter_async_context(page.signed_in(Role.TRAINER))
        for _ in range(3):
            answer = await stack.enter_async_context(watch(browser))
            told = await stack.enter_async_context(aclosing(events(answer)))
            await anext(told)
        refused = await browser.post(WATCH, content=b"{}")
        assert refused.status_code == 429
        assert "retry-after" in refused.headers
        assert (await browser.post("/api/InfoService/GetInfo", json={})).status_code == 200
        other = await stack.enter_async_context(page.signed_in(Role.TRAINER))
        answer = await stack.enter_async_context(watch(other))
        assert answer.status_code == 200


class Reader:
    """Takes the first parts of a stream, and no more."""

    def __init__(self, takes: int) -> None:
        self.takes = takes
        self.taken: list[Any] = []

    async def send(self, message: Any) -> None:
        if len(self.taken) >= self.takes:
            await asyncio.Event().wait()
        self.taken.append(message)


async def test_nothing_is_made_ahead_for_a_reader_that_is_slow_and_one_that_has_gone_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "_UNREAD_SECONDS", 0.01)
    made, closed = [], asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        try:
            for number in range(1000):
                made.append(number)
                yield b"%d" % number
        finally:
            closed.set()

    reader = Reader(takes=3)  # the beginning, and two parts
    await Streaming(parts()).stream_response(reader.send)
    assert made == [0, 1, 2]
    assert closed.is_set()
