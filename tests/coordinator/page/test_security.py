from __future__ import annotations

import pytest

from lipt.common.errors import PermissionDeniedError
from lipt.coordinator.page.application import (
    HEADERS,
    own_names,
    require_own_host,
    require_own_origin,
)

NAMES = own_names("127.0.0.1", ["head.example"], "https://lipt.example.org")


@pytest.mark.parametrize(
    "host",
    [
        "localhost:50080",
        "LOCALHOST",
        "127.0.0.1:50080",
        "127.0.0.1:8080",  # the other end of a tunnel
        "[::1]:50080",
        "192.168.1.7:50080",  # an address cannot be made to point elsewhere
        "head.example",
        "lipt.example.org",
    ],
)
def test_names_and_addresses_of_its_own_are_served(host: str) -> None:
    require_own_host(host, NAMES)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:50080",
        "",
        ":50080",
        "localhost.evil.example",
        "[::1",
        "a@b",
        "127.0.0.1.evil.example",
        "localhost.",
        "http://localhost",
    ],
)
def test_other_names_are_refused_with_those_that_are_served(host: str) -> None:
    with pytest.raises(
        PermissionDeniedError, match=r"head\.example, lipt\.example\.org, localhost"
    ):
        require_own_host(host, NAMES)


def test_a_page_beyond_loopback_is_served_as_its_machine() -> None:
    import socket

    assert socket.gethostname().lower() in own_names("0.0.0.0")
    assert socket.gethostname().lower() not in own_names("127.0.0.1") - {"localhost"}


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost:50080", "localhost:50080"),
        ("http://LOCALHOST:50080", "localhost:50080"),
        ("http://head.example", "head.example:80"),
        ("https://lipt.example.org", "lipt.example.org"),  # a proxy in front has the TLS
        ("https://[::1]:50080", "[::1]:50080"),
    ],
)
def test_the_page_itself_may_change_things(origin: str, host: str) -> None:
    require_own_origin(origin, host)


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "",
        "null",
        "http://evil.example",
        "http://localhost:50081",
        "http://localhost",
        "https://localhost",
        "http://localhost:50080.evil.example",
        "http://localhost:99999999",
        "http://[::1",
        "localhost:50080",
        "http://evil@localhost",
    ],
)
def test_nothing_else_may(origin: str | None) -> None:
    with pytest.raises(PermissionDeniedError, match="not from the page at 'localhost:50080'"):
        require_own_origin(origin, "localhost:50080")


def test_nothing_but_the_pages_own_files_is_run_or_loaded() -> None:
    policy = HEADERS["Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
