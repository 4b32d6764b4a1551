"""`lipt dashboard`."""

from __future__ import annotations

import json
import re
import webbrowser
from typing import Any

import pytest

from lipt.trainer.cli.commands.dashboard import hints
from lipt.trainer.views import PageLinkView
from tests.relay import Relay, change

LINK = re.compile(r"http://127\.0\.0\.1:\d+/sign-in\?code=\S+")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser was given."""
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    return addresses


def test_the_link_is_all_that_is_printed(lipt: Any, opened: list[str]) -> None:
    result = lipt("dashboard")
    assert result.exit_code == 0, result.output
    assert LINK.fullmatch(result.output.removesuffix("\n"))
    assert opened == []
    assert LINK.fullmatch(json.loads(lipt("dashboard", "--json").stdout)["url"])


def test_a_browser_is_opened_where_that_is_asked_for(lipt: Any, opened: list[str]) -> None:
    result = lipt("dashboard", "--open")
    assert result.exit_code == 0
    assert opened == [result.output.removesuffix("\n")]


@pytest.mark.parametrize("address", ["file:///etc/passwd", "javascript:alert(1)", "--help"])
def test_what_is_no_page_is_not_opened(
    relay: Relay, lipt: Any, opened: list[str], address: str
) -> None:
    relay.next("OpenPage", change(lambda answer: setattr(answer, "url", address)))
    result = lipt("dashboard", "--open")
    assert result.exit_code == 1
    assert "is no address of a page" in result.stderr
    assert opened == []


def test_a_page_on_another_machines_loopback_needs_a_tunnel() -> None:
    link = PageLinkView("http://127.0.0.1:50080/sign-in?code=c", None)
    assert hints(link, "127.0.0.1:50051") == []
    (hint,) = hints(link, "head:50051")
    assert "ssh -L 50080:127.0.0.1:50080 head" in hint
    assert hints(PageLinkView("https://head:50080/sign-in?code=c", None), "head:50051") == []
