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

from lipt.common.access import Role
from lipt.common.access.tls import TlsFiles
from lipt.common.errors import ConfigError, StateError, TooManyCallsError, UnauthenticatedError
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.page import requests, serving
from lipt.coordinator.page.requests import Streaming
from lipt.coordinator.page.serving import PageServer
from lipt.coordinator.page.sessions import FILE, SESSION_SECONDS, Attempts, Sessions
from tests.clock import Clock
from tests.coordinator.fakes import joined
from tests.coordinator.page.conftest import ServedPage, page_served
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


async def test_the_page_is_served_over_http_until_it_stops() -> None:
    async with started() as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert await asked(server.url) == "http"
    with pytest.raises(httpx.ConnectError):
        await asked(server.url)


async def test_https_needs_no_client_certificate_and_uses_renewed_files(tmp_path: Path) -> None:
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


async def connected(server: PageServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def is_ended(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(20.0):
            return await reader.read() == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: lo"])
async def test_a_connection_without_a_complete_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(serving, "SILENT_SECONDS", 0.05)
    async with started() as server:
        reader, writer = await connected(server)
        writer.write(said)
        assert await is_ended(reader)
        writer.close()


async def test_a_running_request_outlasts_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SILENT_SECONDS", 1.0)

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(2.5)
        await hello(scope, receive, send)

    async with started(application=slow) as server:
        assert await asked(server.url) == "http"


async def test_the_oldest_silent_connection_of_an_address_is_closed_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "MOST_OF_ADDRESS", 3)
    async with started() as server:
        opened = [await connected(server) for _ in range(3)]
        assert await asked(server.url) == "http"
        assert await is_ended(opened[0][0])
        assert not opened[1][0].at_eof()
        for _, writer in opened:
            writer.close()
    assert "4 of them of 127.0.0.1: silent ones are closed" in caplog.text


def test_above_the_connection_limit_a_silent_one_of_any_address_is_closed() -> None:
    class Connection:
        def __init__(self, address: str, *, silent: bool = True) -> None:
            self.address, self.transport, self.closed = address, self, False
            self.is_silent = lambda: silent

        def abort(self) -> None:
            self.closed = True

    counted = serving.Connections()
    busy = [Connection("a", silent=False) for _ in range(100)]
    silent = [Connection(f"b{number}") for number in range(156)]
    for one in [*busy, *silent, late := Connection("c")]:
        counted.add(one)
    assert [one.closed for one in silent] == [True] + [False] * 155
    assert not late.closed
    # Where none is silent, the newest goes.
    for one in silent[1:]:
        counted.remove(one)
    more = [Connection("d", silent=False) for _ in range(155)]
    for one in more:
        counted.add(one)
    assert [one.closed for one in more] == [False] * 128 + [True] * 27


async def test_an_address_in_use_is_named_with_its_flag() -> None:
    async with started() as server:
        with pytest.raises(ConfigError, match=rf"--dashboard-listen 127\.0\.0\.1:{server.port}: "):
            PageServer(f"127.0.0.1:{server.port}", None)


async def events(answer: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
    async for line in answer.aiter_lines():
        yield json.loads(line)


async def test_the_stream_has_all_runs_first_and_then_changes(page: ServedPage) -> None:
    async with page.signed_in(Role.ADMIN) as browser, watch(browser) as answer:
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        told = events(answer)
        assert (await anext(told))["num_runs"] == 0
        await browser.post("/api/runs", json={"name": "<script>"})
        event = await anext(told)
    assert event["runs"][0]["name"] == "<script>"
    assert event["now"].endswith("Z")


async def test_stream_ends_with_its_session(page: ServedPage) -> None:
    async with page.signed_in(Role.TRAINER) as browser, watch(browser) as told:
        each = events(told)
        await anext(each)
        (record,) = page.app.tokens.listed()
        await page.app.tokens.revoke(record.token_id)
        # What happens is not told any more.
        joined(page.app.dispatcher.workers, "w")
        assert [event async for event in each] == []


async def test_streams_are_limited_per_peer(tmp_path: Path) -> None:
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


async def test_no_answer_is_computed_ahead_for_a_slow_or_closed_stream(
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

    taken: list[Any] = []

    async def send(message: Any) -> None:
        if len(taken) >= 3:  # the beginning, and two parts
            await asyncio.Event().wait()
        taken.append(message)

    await Streaming(parts()).stream_response(send)
    assert made == [0, 1, 2]
    assert closed.is_set()


TRAINER = Caller("token:0a1b", "the token 0a1b", frozenset({Role.TRAINER}))
CERTIFIED = Caller("certificate:ff", "alice", frozenset(Role), "ff", 2e9)


class Shown:
    """Credentials of callers; a test removes them."""

    holds = True


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def sessions(clock: Clock, shown: Shown, tmp_path: Path) -> Sessions:
    return restarted(clock, shown, tmp_path)


def restarted(clock: Clock, shown: Shown, state_dir: Path, own_token: str = "own") -> Sessions:
    """Those of a coordinator, as after a restart."""
    sessions = Sessions(lambda: own_token, lambda _: shown.holds, state_dir, clock=clock)
    sessions.url = "https://lipt.example.org"
    return sessions


def require_ended(sessions: Sessions, cookie: str | None) -> None:
    with pytest.raises(UnauthenticatedError):
        sessions.find(cookie)


def code_of(sessions: Sessions) -> str:
    return sessions.link(TRAINER)[0].partition("code=")[2]


@pytest.mark.parametrize("caller", [TRAINER, CERTIFIED])
def test_a_session_lasts_twelve_hours_across_restarts(
    sessions: Sessions, clock: Clock, shown: Shown, tmp_path: Path, caller: Caller
) -> None:
    cookie = sessions.begin(caller)
    assert sessions.find(cookie).caller == caller
    clock.now += SESSION_SECONDS - 1
    assert restarted(clock, shown, tmp_path).find(cookie).caller == caller
    clock.now += 1
    with pytest.raises(UnauthenticatedError, match=r"session has ended\. Sign in again: .*lipt"):
        sessions.find(cookie)


def test_guessed_and_changed_cookies_and_those_of_another_coordinator_are_refused(
    sessions: Sessions, clock: Clock, shown: Shown, tmp_path: Path
) -> None:
    cookie = sessions.begin(TRAINER)
    middle = len(cookie) // 2
    changed = cookie[:middle] + ("A" if cookie[middle] != "A" else "B") + cookie[middle + 1 :]
    guessed = (None, "", "guessed", "gAAAAA==", "\xff", "\ud800")
    for wrong in (changed, code_of(sessions), *guessed):
        require_ended(sessions, wrong)
    require_ended(restarted(clock, shown, tmp_path, "another token"), cookie)
    assert "0a1b" not in cookie


def test_sessions_end_with_the_coordinator_s_own_token_while_it_serves(
    clock: Clock, tmp_path: Path
) -> None:
    own = iter(["one", "one", "two", "two"])
    sessions = Sessions(lambda: next(own), lambda _: True, tmp_path, clock=clock)
    cookie = sessions.begin(TRAINER)
    require_ended(sessions, cookie)


def test_a_session_ends_with_its_credential(sessions: Sessions, shown: Shown) -> None:
    session = sessions.find(cookie := sessions.begin(TRAINER))
    shown.holds = False
    assert not sessions.holds(session)
    require_ended(sessions, cookie)


async def test_signing_out_ends_all_sessions_of_the_caller(
    sessions: Sessions, clock: Clock, shown: Shown, tmp_path: Path
) -> None:
    left, stayed = sessions.begin(TRAINER), sessions.begin(OWN_USER)
    await sessions.end(sessions.find(left))
    clock.now += 0.01
    for coordinator in (sessions, restarted(clock, shown, tmp_path)):
        require_ended(coordinator, left)
        assert coordinator.find(stayed).caller == OWN_USER
        assert coordinator.find(coordinator.begin(TRAINER)).caller == TRAINER


async def test_only_sign_outs_of_unexpired_sessions_are_kept(
    sessions: Sessions, clock: Clock, tmp_path: Path
) -> None:
    for caller in (TRAINER, OWN_USER):
        await sessions.end(sessions.find(sessions.begin(caller)))
        clock.now += SESSION_SECONDS
    assert "own user" in (tmp_path / FILE).read_text()
    assert TRAINER.key not in (tmp_path / FILE).read_text()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"token:0a1b": "x"}'])
async def test_a_damaged_file_of_sign_outs_ends_all_sessions(
    sessions: Sessions, clock: Clock, shown: Shown, tmp_path: Path, content: bytes
) -> None:
    early = sessions.begin(TRAINER)
    (tmp_path / FILE).write_bytes(content)
    again = restarted(clock, shown, tmp_path)
    require_ended(again, early)
    clock.now += 1
    await again.end(again.find(again.begin(OWN_USER)))
    require_ended(restarted(clock, shown, tmp_path), early)


async def test_a_sign_out_that_cannot_be_stored_is_logged_and_still_applies(
    sessions: Sessions, tmp_path: Path
) -> None:
    session = sessions.find(sessions.begin(TRAINER))
    (tmp_path / FILE).mkdir()
    with pytest.raises(StateError, match=FILE):
        await sessions.end(session)
    assert not sessions.holds(session)


def test_a_code_is_valid_once_within_a_minute(sessions: Sessions, clock: Clock) -> None:
    early, late = code_of(sessions), code_of(sessions)
    clock.now += 59
    assert sessions.take_code(early) == TRAINER
    with pytest.raises(UnauthenticatedError, match="was used"):
        sessions.take_code(early)
    clock.now += 1
    with pytest.raises(UnauthenticatedError, match="older than 60 s"):
        sessions.take_code(late)


def test_a_caller_s_new_codes_replace_its_oldest(sessions: Sessions) -> None:
    other = sessions.link(OWN_USER)[0].partition("code=")[2]
    codes = [code_of(sessions) for _ in range(17)]
    with pytest.raises(UnauthenticatedError):
        sessions.take_code(codes[0])
    assert [sessions.take_code(code) for code in codes[1:]] == [TRAINER] * 16
    assert sessions.take_code(other) == OWN_USER


def test_a_link_has_an_expiry_and_needs_a_page(clock: Clock, shown: Shown, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"serves no page\. Start it with --dashboard-listen"):
        Sessions(lambda: "own", lambda _: True, tmp_path, clock=clock).link(OWN_USER)
    link, ends_at = restarted(clock, shown, tmp_path).link(OWN_USER)
    assert link.startswith("https://lipt.example.org/sign-in?code=")
    assert ends_at == clock.now + 60


def test_sign_ins_may_fail_ten_times_then_every_two_seconds(clock: Clock) -> None:
    attempts = Attempts(clock=clock)
    for _ in range(10):
        attempts.note_failure("192.0.2.1")
    with pytest.raises(TooManyCallsError, match="Try again in 2 s") as caught:
        attempts.note_failure("192.0.2.1")
    assert caught.value.retry_after_seconds == 2.0
    attempts.note_failure("192.0.2.2")
    clock.now += 2.0
    attempts.note_failure("192.0.2.1")
