"""Options that several commands share."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from lipt.common.errors import UnreachableError
from lipt.trainer.cli.arguments.options import modules_of
from lipt.trainer.client.client import Client
from lipt.v1 import info_pb2, info_pb2_grpc


def test_what_is_named_is_allowed_by_that() -> None:
    named = modules_of(None, "mine:data", None, "digits", "imagefolder:/data", "shop.nets:model")
    assert named == ("mine", "shop.nets")
    assert modules_of(["other"], "mine:data") == ("other", "mine")


class Info(info_pb2_grpc.InfoServiceServicer):
    def GetInfo(self, request: Any, context: Any) -> info_pb2.GetInfoResponse:
        return info_pb2.GetInfoResponse()

    def WatchService(self, request: Any, context: Any) -> Iterator[info_pb2.WatchServiceResponse]:
        return iter(())


@pytest.fixture
def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_coordinator_that_comes_up_late_is_waited_for(free_port: int) -> None:
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    info_pb2_grpc.add_InfoServiceServicer_to_server(Info(), server)
    told: list[str] = []

    def come_up(why: str) -> None:
        told.append(why)
        if len(told) == 1:
            server.add_insecure_port(f"127.0.0.1:{free_port}")
            server.start()

    with Client(f"127.0.0.1:{free_port}") as client:
        client.reach(60.0, on_pause=come_up)
    assert told
    assert "no coordinator answers at" in told[0]
    server.stop(None).wait()


def test_one_that_never_comes_is_given_up(dead_address: str, lipt: Any) -> None:
    with Client(dead_address) as client, pytest.raises(UnreachableError, match=dead_address):
        client.reach(0.0)
    result = lipt("run", "list", "--wait", "0.1", "--coordinator", dead_address)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"lipt: no coordinator answers at {dead_address}")


def test_one_that_refuses_is_there(fake: Any, lipt: Any, refusal: Any) -> None:
    fake.refusal = refusal(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", "no token.")
    assert lipt("run", "list", "--wait", "60").stderr == "lipt: no token.\n"
    fake.refusal = None
    assert lipt("run", "list", env={"LIPT_WAIT": "60"}).exit_code == 0


def test_a_wait_is_no_negative_number(lipt: Any) -> None:
    assert lipt("run", "list", "--wait", "-1").exit_code == 2
