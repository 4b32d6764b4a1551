"""What peers call themselves, on the terminal of whoever asks for it."""

import json
from typing import Any

import pytest
from grpc import StatusCode

from lipt.v1 import config_pb2, info_pb2, run_pb2
from tests.relay import Relay, answer, change, refuse

# A line of the doctor, a row of the table, cleared screens, a window's title, backward text.
HOSTILE = "x\nok     data: fine.\r\n9  fake\x1b[2J\x9b2J\x1b]0;t\x07\u202e\x00"
SHOWN = r"x\nok     data: fine.\r\n9  fake\x1b[2J\x9b2J\x1b]0;t\x07\u202e\x00"


def unprintable(text: str) -> set[str]:
    return {mark for mark in text if not mark.isprintable()} - {"\n"}


def run() -> run_pb2.Run:
    learner = run_pb2.Learner(state=run_pb2.LEARNER_STATE_DONE, worker_name=HOSTILE, device=HOSTILE)
    learner.message = HOSTILE
    learner.ingredient.kept = True
    return run_pb2.Run(
        run_id="r-1",
        name=HOSTILE,
        state=run_pb2.RUN_STATE_FAILED,
        revision=1,
        config=config_pb2.RunConfig(model="resnet8"),
        message=HOSTILE,
        learners=[learner],
    )


def with_hostile_worker(info: info_pb2.GetInfoResponse) -> None:
    worker = info.workers.add(worker_id="w", name=HOSTILE, device=HOSTILE, assignment=HOSTILE)
    worker.versions["torch"] = HOSTILE


@pytest.fixture(autouse=True)
def hostile(relay: Relay) -> None:
    relay.every("GetRun", answer(run_pb2.GetRunResponse(run=run())))
    relay.every("ListRuns", answer(run_pb2.ListRunsResponse(runs=[run()])))
    relay.every("WatchRun", answer(run_pb2.WatchRunResponse(run=run())))
    relay.every("CancelRun", answer(run_pb2.CancelRunResponse(run=run())))
    relay.every("GetInfo", change(with_hostile_worker))


@pytest.mark.parametrize(
    "command",
    [["doctor"], ["run", "show"], ["run", "list"], ["run", "watch"], ["run", "cancel", "latest"]],
)
def test_peer_texts_cannot_control_the_terminal(lipt: Any, command: list[str]) -> None:
    result = lipt(*command)
    assert SHOWN in result.stdout
    assert not unprintable(result.output)
    assert not [
        line for line in result.stdout.splitlines() if line.startswith(("9  ", "ok     data: f"))
    ]


@pytest.mark.parametrize("command", [["doctor"], ["run", "show"]])
def test_json_output_escapes_peer_texts(lipt: Any, command: list[str]) -> None:
    result = lipt(*command, "--json")
    assert not unprintable(result.stdout)
    assert any(HOSTILE in text for text in _texts(json.loads(result.stdout)))


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def test_a_refusal_is_one_line_for_any_message(relay: Relay, lipt: Any) -> None:
    relay.next("GetRun", refuse(StatusCode.NOT_FOUND, "UNKNOWN_RUN", HOSTILE))
    result = lipt("run", "show")
    assert result.stderr == f"lipt: {SHOWN}\n"
