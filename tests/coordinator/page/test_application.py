import asyncio
import hashlib
import logging
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from lipt.common.access import Role
from lipt.common.errors import InvalidRequestError, PermissionDeniedError
from lipt.coordinator.access.caller import ALLOWED_ROLES, ANYBODY
from lipt.coordinator.page import requests
from lipt.coordinator.page.application import (
    HEADERS,
    ROUTES,
    STATIC,
    Route,
    own_names,
    require_own_host,
    require_own_origin,
)
from lipt.coordinator.page.handlers import pictures
from lipt.coordinator.page.requests import MAX_BODY_BYTES, PageRequest, by_fields
from lipt.v1 import config_pb2
from tests.coordinator.page.conftest import ServedPage, page_served

CANCEL = "/api/RunService/CancelRun"
API = tuple(row for row in ROUTES if row.path.startswith("/api/") and row.call)


async def sent(browser: httpx.AsyncClient, row: Route, **options: Any) -> int:
    """The status of a route's answer; a live stream is left at once."""
    content = b"{}" if row.method == "POST" else None
    address = re.sub(r"{\w+}", "some", row.path)
    request = browser.build_request(row.method, address, content=content, **options)
    answer = await browser.send(request, stream=True)
    await answer.aclose()
    return answer.status_code


async def me(browser: httpx.AsyncClient) -> httpx.Response:
    return await browser.post("/api/AccessService/WhoAmI", content=b"{}")


def reason(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["reason"])


def test_every_route_allows_the_roles_of_an_existing_call() -> None:
    named = {f"/lipt.v1.{row.call}" for row in ROUTES if row.call}
    assert named <= ALLOWED_ROLES.keys()
    open_to_workers = {call for call in named if Role.WORKER in ALLOWED_ROLES[call]}
    assert open_to_workers == {"/lipt.v1.AccessService/WhoAmI", "/lipt.v1.InfoService/GetInfo"}


async def test_every_route_needs_a_session(page: ServedPage) -> None:
    async with page.browser() as browser:
        statuses = {row.path: await sent(browser, row) for row in API}
        browser.cookies.set(f"lipt-{httpx.URL(page.url).port}", "no secret of a session")
        guessed = {row.path: await sent(browser, row) for row in API}
    assert len(API) >= 10
    assert set(statuses.values()) | set(guessed.values()) == {401}


async def test_a_link_signs_in_only_the_first_browser(page: ServedPage) -> None:
    async with page.browser() as browser:
        opened = await browser.get(page.link)
        assert (opened.status_code, opened.headers["location"]) == (303, "/")
        cookie = opened.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "secure" not in cookie  # there is no TLS
        shown = (await me(browser)).json()
        assert shown == {"name": "the coordinator's own user", "roles": ["ROLE_ADMIN"]}
    async with page.browser() as another:
        refused = await another.get(page.link)
        assert (refused.status_code, refused.headers["location"]) == (303, "/?refused=1")
        assert "set-cookie" not in refused.headers
        assert (await me(another)).status_code == 401


async def test_token_signs_in_with_its_role_until_it_is_revoked(page: ServedPage) -> None:
    async with page.signed_in(Role.TRAINER) as browser:
        assert (await me(browser)).json()["roles"] == ["ROLE_TRAINER"]
        (record,) = page.app.tokens.listed()
        await page.app.tokens.revoke(record.token_id)
        assert (await me(browser)).status_code == 401


async def test_a_worker_cannot_sign_in(page: ServedPage) -> None:
    _, token = await page.app.tokens.create(Role.WORKER, name="", days=0, creator=ANYBODY)
    async with page.browser() as browser:
        answer = await browser.post("/api/sign-in", json={"token": token})
        assert (answer.status_code, reason(answer)) == (403, "PERMISSION_DENIED")
        assert "set-cookie" not in answer.headers


async def test_a_session_outlives_restarts_until_it_is_signed_out(tmp_path: Path) -> None:
    async with page_served(tmp_path) as page, page.signed_in(Role.TRAINER) as browser:
        (cookie,) = browser.cookies.values()
    async with page_served(tmp_path) as page, page.browser() as browser:
        browser.cookies.set(f"lipt-{httpx.URL(page.url).port}", cookie)
        assert (await me(browser)).status_code == 200
        assert (await browser.post("/api/sign-out", json={})).status_code == 200
        assert await status_with(page, cookie) == 401
    async with page_served(tmp_path) as again:
        assert await status_with(again, cookie) == 401


async def status_with(page: ServedPage, cookie: str) -> int:
    """Of a request with a copy of a cookie."""
    async with page.browser() as browser:
        browser.cookies.set(f"lipt-{httpx.URL(page.url).port}", cookie)
        return (await me(browser)).status_code


async def test_failed_sign_ins_are_rate_limited(page: ServedPage) -> None:
    async with page.browser() as browser:
        wrong = [{"token": f"token {number}"} for number in range(12)]
        answers = [await browser.post("/api/sign-in", json=token) for token in wrong]
        assert [answer.status_code for answer in answers[:10]] == [401] * 10
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert int(refused[0].headers["retry-after"]) >= 1
        linked = await browser.get("/sign-in?code=guessed")
        assert linked.headers["location"] == "/?refused=1"
        # Others at that address sign in.
        assert (await browser.get(page.link)).headers["location"] == "/"
    async with page.signed_in(Role.TRAINER) as browser:
        assert (await me(browser)).status_code == 200


async def test_a_trainer_cannot_start_or_cancel_runs(page: ServedPage) -> None:
    async with page.signed_in(Role.TRAINER) as browser:
        for path, wanted in (("/api/runs", {"name": "mine"}), (CANCEL, {"run_id": "mine"})):
            refused = await browser.post(path, json=wanted)
            assert refused.status_code == 403
            assert "admins alone" in refused.json()["error"]["message"]
    assert page.app.store.runs() == ()


async def test_admin_starts_one_run_and_cancels_it(page: ServedPage) -> None:
    wanted = {"name": "<b>mine", "settings": "seed = 3"}
    async with page.signed_in(Role.ADMIN) as browser:
        started = await browser.post("/api/runs", json=wanted)
        run = started.json()["run"]
        assert (run["name"], run["config"]["seed"]) == ("<b>mine", "3")
        assert started.headers["content-type"] == "application/json"
        ended = await browser.post(CANCEL, json={"run_id": run["run_id"]})
        assert ended.json()["run"]["state"] == "RUN_STATE_CANCELLED"
        wrong = await browser.post("/api/runs", json={"settings": "learners = [1]"})
        assert (wrong.status_code, reason(wrong)) == (400, "INVALID_CONFIG")
        no_toml = await browser.post("/api/runs", json={"settings": "seed"})
        assert (no_toml.status_code, reason(no_toml)) == (400, "INVALID_REQUEST")
        nobodys = await browser.post(CANCEL, json={"run_id": "other"})
        assert (nobodys.status_code, reason(nobodys)) == (404, "UNKNOWN_RUN")
    assert len(page.app.store.runs()) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Content-Type": ""},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Host": "evil.example"},
    ],
)
async def test_requests_of_other_pages_are_refused(
    page: ServedPage, headers: dict[str, str]
) -> None:
    changing = [row for row in ROUTES if row.method == "POST"]
    async with page.signed_in(Role.ADMIN) as browser:
        statuses = {row.path: await sent(browser, row, headers=headers) for row in changing}
        assert (await me(browser)).status_code == 200
    assert set(statuses.values()) <= {400, 403}, statuses
    assert page.app.store.runs() == ()


async def test_large_bodies_are_refused_with_and_without_a_length(page: ServedPage) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 4096 + 1):
            yield b" " * 4096

    async with page.signed_in(Role.ADMIN) as browser:
        said = await browser.post("/api/runs", content=b" " * (MAX_BODY_BYTES + 1))
        silent = await browser.post("/api/runs", content=chunks())
    assert (said.status_code, silent.status_code) == (413, 413)
    assert reason(said) == "BLOB_TOO_LARGE"


async def test_every_answer_has_the_security_headers(page: ServedPage) -> None:
    async with page.signed_in(Role.ADMIN) as browser:
        answers = [
            await me(browser),
            await browser.get("/"),
            await browser.get("/nothing"),
            await browser.get("/static/nothing.js"),
            await browser.put("/api/runs"),
            await browser.get("/sign-in?code=wrong"),
            await browser.post("/api/runs", content=b"{"),
            *[
                await browser.get(path, headers={"Host": "evil.example"})
                for path in ("/", "/api/runs/some/subsets", "/static/page.css", "/nothing")
            ],
        ]
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert "server" not in answer.headers
        assert answer.headers["cache-control"] in {"no-store", "no-cache"}
    assert [answer.status_code for answer in answers[2:5]] == [404, 404, 405]
    assert [reason(answer) for answer in answers[7:]] == 4 * ["PERMISSION_DENIED"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../serving.py",
        "/static/..%2fserving.py",
        "/static/%2e%2e/serving.py",
        "/static//etc/passwd",
        "/static/....//serving.py",
        "/static/%00",
        "/../../etc/passwd",
    ],
)
async def test_no_path_leaves_the_page_s_folder(page: ServedPage, path: str) -> None:
    url = httpx.URL(page.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {url.netloc.decode()}\r\n\r\n".encode())
    status = await reader.readline()
    writer.close()
    assert int(status.split()[1]) in {400, 404}, status


async def test_an_internal_error_shows_only_its_number(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("a secret of the inside")

    async with page.signed_in(Role.ADMIN) as browser:
        monkeypatch.setattr(page.app.requests.store, "find", lambda _: fail())
        answer = await browser.post(CANCEL, json={"run_id": "x"})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    number = answer.json()["error"]["message"].rpartition(" ")[2].rstrip(".")
    assert f"incident {number}" in caplog.text


async def test_refusals_are_counted_and_logged_like_calls(
    page: ServedPage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with page.browser() as browser:
        await me(browser)
    (key,) = [key for key in page.app.events.counts() if key[1] == "UNAUTHENTICATED"]
    assert page.app.events.counts()[key] == 1
    assert 'method="POST /api/AccessService/WhoAmI"' in caplog.text


async def test_a_body_that_does_not_arrive_times_out(
    page: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_BODY_SECONDS", 0.05)
    url = httpx.URL(page.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    host = url.netloc.decode()
    head = f"POST /api/sign-in HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
    writer.write(head.encode())
    assert (await reader.readline()).split()[1] == b"400"
    writer.close()


NAMES = own_names("127.0.0.1", ["head.example"], "https://lipt.example.org")


def test_own_names_and_addresses_are_served_and_no_others() -> None:
    # A tunnel's other end; addresses, which cannot be made to point elsewhere; its own names.
    for host in ("127.0.0.1:8080", "[::1]:50080", "192.168.1.7:50080", "LOCALHOST:50080"):
        require_own_host(host, NAMES)
    require_own_host("lipt.example.org", NAMES)
    words = r"head\.example, lipt\.example\.org, localhost"
    wrong = ("evil.example:50080", ":50080", "[::1", "127.0.0.1.evil.example", "http://localhost")
    for host in ("", *wrong):
        with pytest.raises(PermissionDeniedError, match=words):
            require_own_host(host, NAMES)


def test_the_page_itself_may_change_things_and_nothing_else() -> None:
    for origin, host in (
        ("http://localhost:50080", "localhost:50080"),
        ("http://LOCALHOST:50080", "localhost:50080"),
        ("https://lipt.example.org", "lipt.example.org"),  # a proxy in front has the TLS
        ("https://[::1]:50080", "[::1]:50080"),
    ):
        require_own_origin(origin, host)
    words = "not from the page at 'localhost:50080'"
    wrong = ("localhost:50081", "localhost", "localhost:99999999", "[::1", "evil@localhost")
    wrong += ("evil.example", "localhost:50080.evil.example")
    others = (None, "", "null", "https://localhost", "localhost:50080")
    for foreign in (*others, *(f"http://{host}" for host in wrong)):
        with pytest.raises(PermissionDeniedError, match=words):
            require_own_origin(foreign, "localhost:50080")


REQUEST = Mock(PageRequest, http=Mock(path_params={}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b'{"ids": [NaN]}',
        b'{"ids": ["1"]}',
        b'{"ids": [' + b"9" * 5000 + b"]}",
        b'{"ids": ' + b"[" * 30_000,
        b'{"ids": [], "more": 1}',
        b'{"ids": [' + b",".join([b"1"] * 10_000) + b"]}",
        b'{"\\ud800": 1}',
        b"\xff{}",
    ],
)
async def test_a_body_is_json_with_the_expected_fields(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        await by_fields(pictures)(REQUEST, body)


async def test_a_refusal_names_the_field_and_not_its_content() -> None:
    with pytest.raises(InvalidRequestError, match=r"^the request is invalid: 'ids\.1': "):
        await by_fields(pictures)(REQUEST, b'{"ids": [1, "<script>"]}')


SCRIPTS = sorted(STATIC.glob("*.js"))
# What reads text as markup or as code, and what a strict Content-Security-Policy refuses.
DANGEROUS = re.compile(
    r"[iI]nnerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc"
    r"|\beval\(|new Function"
    r"|createContextualFragment|setAttribute\(.(style|on)|\bstyle:|https?://(?!www\.w3\.org/2000/svg)"
)


def test_settings_are_shown_by_their_values_in_run_toml() -> None:
    enums = config_pb2.DESCRIPTOR.enum_types_by_name.values()
    names = {enum.values_by_number[0].name.removesuffix("_UNSPECIFIED") for enum in enums}
    (known,) = re.findall(r"/\^\(([A-Z_|]+)\)_/", (STATIC / "parts.js").read_text())
    assert set(known.split("|")) == names


# One process for all: `node --check` takes one file, and takes .js for no module.
PARSE = """
import { readFileSync } from "node:fs";
import { SourceTextModule } from "node:vm";
for (const name of process.argv.slice(1)) {
  new SourceTextModule(readFileSync(name, "utf8"), { identifier: name });
}
"""
IMPORT = re.compile(r'^import .* from "\./([\w/-]+\.js)";$', re.MULTILINE)
# preact/standalone.module.js of the npm package htm 3.1.1, as it was published.
VENDORED = "vendor/htm-preact.js"
VENDORED_SHA256 = "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_insert_no_markup_and_load_nothing_external(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert DANGEROUS.search(text) is None
    assert len(text.splitlines()) <= 300
    assert [name for name in IMPORT.findall(text) if not (STATIC / name).is_file()] == []


def test_every_script_is_imported() -> None:
    reached, waiting = set[str](), ["main.js"]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += IMPORT.findall((STATIC / name).read_text(encoding="utf-8"))
    assert reached == {path.name for path in SCRIPTS} | {VENDORED}


def test_the_vendored_library_equals_the_published_one_with_licences() -> None:
    content = (STATIC / VENDORED).read_bytes()
    assert hashlib.sha256(content).hexdigest() == VENDORED_SHA256
    licences = (STATIC / "vendor" / "LICENSE").read_text(encoding="utf-8")
    assert "The MIT License (MIT)" in licences
    assert "Apache License" in licences


def test_document_has_no_inline_code_and_no_style() -> None:
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    assert re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=\"/static/)", text) is None


def test_every_script_parses() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here: apt-get install nodejs")
    flags = ["--experimental-vm-modules", "--no-warnings", "--input-type=module", "--eval", PARSE]
    names = [str(path) for path in SCRIPTS]
    checked = subprocess.run([node, *flags, *names], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
