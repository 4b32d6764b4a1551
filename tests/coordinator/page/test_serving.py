"""What listens for browsers, on a real port of this process."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from lipt.common.errors import ConfigError
from lipt.common.network.tls import TlsFiles
from lipt.coordinator.page.serving import PageServer
from tests.tls_files import write_files


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


async def test_what_is_under_way_is_answered_before_it_stops() -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await goes_on.wait()
        await hello(scope, receive, send)

    server = PageServer("127.0.0.1:0", None)
    await server.start(slow, drain_seconds=5.0)
    answer = asyncio.create_task(asked(server.url))
    await begun.wait()
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    goes_on.set()
    assert await answer == "http"
    await stopping


async def test_signals_stay_the_coordinators() -> None:
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, heard.set)
    try:
        async with started() as server:
            os.kill(os.getpid(), signal.SIGTERM)
            await heard.wait()
            assert await asked(server.url) == "http"
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_address_that_is_taken_is_named_with_its_flag() -> None:
    async with started() as server:
        with pytest.raises(ConfigError, match=rf"--dashboard-listen 127\.0\.0\.1:{server.port}: "):
            PageServer(server.address, None)
