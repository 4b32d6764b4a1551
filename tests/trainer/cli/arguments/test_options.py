"""Options that several commands share."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

import pytest

from lipt.common.access.tokens import Token
from lipt.common.errors import UnreachableError
from lipt.trainer.cli.arguments.options import modules_of
from lipt.trainer.client.client import Client
from tests.relay import Relay
from tests.service import Service


def test_what_is_named_is_allowed_by_that() -> None:
    named = modules_of(None, "mine:data", None, "digits", "imagefolder:/data", "shop.nets:model")
    assert named == ("mine", "shop.nets")
    assert modules_of(["other"], "mine:data") == ("other", "mine")


@pytest.fixture
def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_coordinator_that_comes_up_late_is_waited_for(service: Service, free_port: int) -> None:
    told: list[str] = []
    with ExitStack() as stack, Client(f"127.0.0.1:{free_port}") as client:

        def come_up(why: str) -> None:
            told.append(why)
            if len(told) == 1:
                stack.enter_context(Relay(service.address, port=free_port))

        client.reach(60.0, on_pause=come_up)
    assert told
    assert "no coordinator answers at" in told[0]


def test_one_that_never_comes_is_given_up(dead_address: str, lipt: Any) -> None:
    with Client(dead_address) as client, pytest.raises(UnreachableError, match=dead_address):
        client.reach(0.0)
    result = lipt("run", "list", "--wait", "0.1", "--coordinator", dead_address)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"lipt: no coordinator answers at {dead_address}")


def test_one_that_refuses_is_there(relay: Relay, lipt: Any) -> None:
    token = {"LIPT_TOKEN": Token.draw("0a1b2c3d").text}
    refused = lipt("run", "list", "--wait", "60", env=token)
    assert refused.exit_code == 1
    assert "token" in refused.stderr
    assert lipt("run", "list", env={"LIPT_WAIT": "60"}).exit_code == 0
    assert len(relay.calls) == 4  # each asked whether it is there, and then for runs


def test_a_wait_is_no_negative_number(lipt: Any) -> None:
    assert lipt("run", "list", "--wait", "-1").exit_code == 2
