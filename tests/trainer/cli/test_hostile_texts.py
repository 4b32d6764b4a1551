"""What peers call themselves, on the terminal of whoever asks for it."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from lipt.v1 import config_pb2, info_pb2, run_pb2

# A line of the doctor, a row of the table, cleared screens, a window's title, backward text.
HOSTILE = "x\nok     data: fine.\r\n9  fake\x1b[2J\x9b2J\x1b]0;t\x07\u202e\x00"
SHOWN = r"x\nok     data: fine.\r\n9  fake\x1b[2J\x9b2J\x1b]0;t\x07\u202e\x00"


def unprintable(text: str) -> set[str]:
    return {mark for mark in text if not mark.isprintable()} - {"\n"}


@pytest.fixture(autouse=True)
def hostile(fake: Any) -> None:
    learner = run_pb2.Learner(state=run_pb2.LEARNER_STATE_DONE, worker_name=HOSTILE, device=HOSTILE)
    learner.message = HOSTILE
    learner.ingredient.kept = True
    fake.runs = [
        run_pb2.Run(
            run_id="r-1",
            name=HOSTILE,
            state=run_pb2.RUN_STATE_FAILED,
            revision=1,
            config=config_pb2.RunConfig(model="resnet8"),
            message=HOSTILE,
            learners=[learner],
        )
    ]
    fake.info.workers.append(
        info_pb2.WorkerInfo(
            worker_id="w",
            name=HOSTILE,
            device=HOSTILE,
            assignment=HOSTILE,
            versions={"torch": HOSTILE},
        )
    )


@pytest.mark.parametrize(
    "command", [["doctor"], ["run", "show"], ["run", "list"], ["run", "watch"], ["run", "cancel"]]
)
def test_no_line_is_forged_and_no_terminal_steered(
    fake: Any, lipt: Any, command: list[str]
) -> None:
    fake.watch_scripts = [[fake.runs[0]]]
    result = lipt(*command, *(["latest"] if command[-1] == "cancel" else []))
    assert SHOWN in result.stdout
    assert not unprintable(result.output)
    assert not [
        line for line in result.stdout.splitlines() if line.startswith(("9  ", "ok     data: f"))
    ]


@pytest.mark.parametrize("command", [["doctor"], ["run", "show"]])
def test_json_has_the_text_itself_in_escapes_of_its_own(
    fake: Any, lipt: Any, command: list[str]
) -> None:
    result = lipt(*command, "--json")
    assert not unprintable(result.stdout)
    assert any(HOSTILE in text for text in _texts(json.loads(result.stdout)))


def _texts(value: Any) -> list[str]:
    """All strings of a document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def test_a_refusal_is_one_line_whatever_the_coordinator_says(
    fake: Any, lipt: Any, refusal: Any
) -> None:
    fake.refusal = refusal(grpc.StatusCode.NOT_FOUND, "UNKNOWN_RUN", HOSTILE)
    result = lipt("run", "show")
    assert result.stderr == f"lipt: {SHOWN}\n"
