"""`lipt top` where standard output is no terminal."""

from __future__ import annotations

import json
from typing import Any

from lipt.v1 import info_pb2, run_pb2


def standing() -> info_pb2.WatchServiceResponse:
    run = run_pb2.Run(run_id="r-1", name="first", state=run_pb2.RUN_STATE_READY)
    worker = info_pb2.WorkerInfo(worker_id="w", name="box\x1b[31m", device="cpu")
    return info_pb2.WatchServiceResponse(runs=[run], num_runs=1, workers=[worker], num_workers=1)


def test_it_is_printed_once_where_there_is_no_terminal(fake: Any, lipt: Any) -> None:
    fake.service_scripts = [[standing()]]
    result = lipt("top", "--runs", "7")
    assert result.exit_code == 0
    assert "first" in result.stdout
    assert "box\\x1b[31m" in result.stdout
    (request,) = fake.requests_of(info_pb2.WatchServiceRequest)
    assert request.num_runs == 7


def test_as_json_one_object_tells_all(fake: Any, lipt: Any) -> None:
    fake.service_scripts = [[standing()]]
    result = lipt("top", "--once", "--json")
    (line,) = result.stdout.splitlines()
    shown = json.loads(line)
    assert [run["name"] for run in shown["runs"]] == ["first"]
    assert (shown["num_workers"], shown["computations"]) == (1, [])


def test_an_interval_out_of_range_is_refused(lipt: Any) -> None:
    assert lipt("top", "--interval", "0.1").exit_code == 2
