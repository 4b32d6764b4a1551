import threading
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from lipt.cli import output, terminal_client
from lipt.cli.terminal_client import TerminalClient
from lipt.trainer.client.client import Client
from lipt.trainer.client.connection import Silence

SILENCE = Silence("head:1", datetime(2026, 1, 2, 0, 7, 17, tzinfo=UTC))


@pytest.mark.parametrize("name", ["wait", "subset", "diagnose", "mixture"])
def test_calls_that_wait_print_that_the_coordinator_is_gone(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    gone = threading.Event()

    def answer(*_: Any, **__: Any) -> str:
        assert gone.wait(30)
        return "the answer"

    def show(line: str) -> None:
        if line == "coordinator head:1 does not answer since 00:07:17; waiting":
            gone.set()

    shown = partial(output.run_with_progress, print_line=show)
    monkeypatch.setattr(terminal_client, "run_with_progress", shown)
    monkeypatch.setattr(Client, name, answer)
    monkeypatch.setattr(Client, "silence", lambda _: SILENCE)
    with TerminalClient("head:1") as client:
        assert getattr(client, name)() == "the answer"
