from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from lipt.common.observability.logs import (
    EventKind,
    Events,
    JsonFormatter,
    logging_about,
)
from lipt.common.observability.tracing import span
from tests.remembered_spans import remembering

HOSTILE = 'x\n{"level": "INFO"}\x1b[2J\x9b\u202e\u2028'


class Log:
    """A logger of its own, and the objects that it has written."""

    def __init__(self) -> None:
        self._written = io.StringIO()
        handler = logging.StreamHandler(self._written)
        handler.setFormatter(JsonFormatter())
        self.logger = logging.Logger("lipt.test")  # noqa: LOG001 - one that nobody else has
        self.logger.addHandler(handler)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._written.getvalue().splitlines()]

    def line(self) -> dict[str, Any]:
        (line,) = self.lines()
        return line


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_record_is_one_object(log: Log) -> None:
    record = logging.LogRecord("lipt.test", logging.INFO, "", 0, "learner %s is in", ("r/0",), None)
    record.created = 1_700_000_000.25
    log.logger.handle(record)
    assert log.line() == {
        "time": "2023-11-14T22:13:20.250000Z",
        "level": "INFO",
        "logger": "lipt.test",
        "message": "learner r/0 is in",
    }


def fail() -> None:
    raise ValueError(HOSTILE)


def test_a_traceback_is_a_field(log: Log) -> None:
    try:
        fail()
    except ValueError:
        log.logger.exception("it failed", stack_info=True)
    line = log.line()
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert HOSTILE in line["exception"]
    assert line["stack"].startswith("Stack (most recent call last):\n")


def test_an_event_is_an_object_of_its_own(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipt.common.observability.logs.logger", log.logger)
    with logging_about(run="6c51"):
        Events().record(EventKind.LEARNER_FAILED, run="run-1", learner=3, reason=HOSTILE)
    line = log.line()
    assert line["event"] == {
        "kind": "learner_failed",
        "run": "run-1",
        "learner": 3,
        "reason": HOSTILE,
    }
    assert line["run"] == "6c51"
    assert line["message"].startswith("event=learner_failed run=run-1 learner=3 reason=")


def test_a_line_has_the_ids_of_what_it_belongs_to(log: Log) -> None:
    with logging_about(run="a", assignment="a/1"):
        log.logger.info("one")
        with logging_about(run="b", learner=2, worker=""):
            log.logger.info("two")
    log.logger.info("three")
    one, two, three = log.lines()
    assert (one["run"], one["assignment"]) == ("a", "a/1")
    assert (two["run"], two["assignment"], two["learner"]) == ("b", "a/1", "2")
    assert "worker" not in two
    assert not {"run", "assignment", "learner"} & set(three)


def test_a_line_names_the_span_that_it_is_logged_in(log: Log) -> None:
    with remembering() as spans:
        with span("work"):
            log.logger.info("within")
        log.logger.info("after")
    within, after = log.lines()
    assert within["trace_id"] == f"{spans['work'].context.trace_id:032x}"
    assert within["span_id"] == f"{spans['work'].context.span_id:016x}"
    assert "trace_id" not in after
