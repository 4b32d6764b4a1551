"""`lipt top` where standard output is no terminal."""

from __future__ import annotations

import json
from typing import Any

from lipt.v1 import info_pb2
from tests.relay import Relay, change
from tests.service import READY


def hostile(view: info_pb2.WatchServiceResponse) -> None:
    view.workers.add(worker_id="w", name="box\x1b[31m", device="cpu")


def test_it_is_printed_once_where_there_is_no_terminal(relay: Relay, lipt: Any) -> None:
    relay.next("WatchService", change(hostile))
    result = lipt("top", "--runs", "200")
    assert result.exit_code == 0
    assert READY in result.stdout
    assert "box\\x1b[31m" in result.stdout
    (request,) = relay.requests_of(info_pb2.WatchServiceRequest)
    assert request.num_runs == 200


def test_as_json_one_object_tells_all(lipt: Any) -> None:
    result = lipt("top", "--once", "--runs", "200", "--json")
    (line,) = result.stdout.splitlines()
    shown = json.loads(line)
    assert READY in [run["name"] for run in shown["runs"]]
    assert shown["num_runs"] == len(shown["runs"])
    assert shown["computations"] == []


def test_an_interval_out_of_range_is_refused(lipt: Any) -> None:
    assert lipt("top", "--interval", "0.1").exit_code == 2
