import io
import json
import logging
from typing import Any

import pytest
from grpc._cython import cygrpc

from lipt.common.observability.logs import (
    EventKind,
    Events,
    FloodFilter,
    JsonFormatter,
    PrintableFormatter,
    is_own,
    logging_about,
)
from lipt.common.observability.tracing import span
from tests.clock import Clock
from tests.remembered_spans import remembering

HOSTILE = "x\n2026-01-01 INFO all is well\x1b[2J\x9b\u202e"


class Log:
    def __init__(self, formatter: logging.Formatter) -> None:
        self._written = io.StringIO()
        handler = logging.StreamHandler(self._written)
        handler.setFormatter(formatter)
        self.logger = logging.Logger("lipt.test")  # noqa: LOG001 - one that nobody else has
        self.logger.addHandler(handler)

    def fail(self, text: str) -> None:
        try:
            raise ValueError(text)  # noqa: TRY301
        except ValueError:
            self.logger.exception("it failed", stack_info=True)

    def lines(self) -> list[str]:
        return self._written.getvalue().splitlines()

    def objects(self) -> list[dict[str, Any]]:
        return list(map(json.loads, self.lines()))


@pytest.fixture
def json_log() -> Log:
    return Log(JsonFormatter())


def test_every_log_record_is_one_line() -> None:
    log = Log(PrintableFormatter("%(levelname)s %(message)s"))
    log.logger.warning("worker %s has joined", HOSTILE)
    log.logger.warning(f"worker {HOSTILE} has joined")
    line = r"WARNING worker x\n2026-01-01 INFO all is well\x1b[2J\x9b\u202e has joined"
    assert log.lines() == [line, line]
    log.fail(HOSTILE)
    _, _, first, *rest = log.lines()
    assert first == "ERROR it failed"
    assert rest.pop(0) == "Traceback (most recent call last):"
    assert r"    2026-01-01 INFO all is well\x1b[2J\x9b\u202e" in rest
    assert all(line.startswith(("    ", "Stack (most recent")) for line in rest)


def test_an_event_is_one_log_line_and_one_count(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    events = Events()
    events.record(EventKind.LEASE_EXPIRED, run="run-1", learner=3, worker="", reason="silent, so")
    assert caplog.messages == ['event=lease_expired run=run-1 learner=3 reason="silent, so"']
    assert events.counts() == {(EventKind.LEASE_EXPIRED, ""): 1}


@pytest.mark.parametrize(
    "text", ["a\nevent=run_ended", 'quote"d', "tab\there", "a=b", "a b", "a\u2028b", "trailing\n"]
)
def test_peer_texts_cannot_begin_a_line_or_pair(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    Events().record(EventKind.CALL_REFUSED, reason=text)
    (line,) = caplog.messages
    assert len(line.splitlines()) == 1
    assert line.startswith('event=call_refused reason="')
    assert line.endswith('"')


def test_a_traceback_is_a_field(json_log: Log) -> None:
    json_log.fail(HOSTILE)
    (line,) = json_log.objects()
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert HOSTILE in line["exception"]
    assert line["stack"].startswith("Stack (most recent call last):\n")


def test_an_event_is_one_json_object(json_log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipt.common.observability.logs.logger", json_log.logger)
    with logging_about(run="6c51"):
        Events().record(EventKind.LEARNER_FAILED, run="run-1", learner=3, reason=HOSTILE)
    (line,) = json_log.objects()
    fields = {"run": "run-1", "learner": 3, "reason": HOSTILE}
    assert line["event"] == {"kind": "learner_failed", **fields}
    assert line["run"] == "6c51"
    assert line["message"].startswith("event=learner_failed run=run-1 learner=3 reason=")


def test_a_log_line_has_the_ids_of_its_context(json_log: Log) -> None:
    with logging_about(run="a", assignment="a/1"):
        json_log.logger.info("one")
        with logging_about(run="b", learner=2, worker=""):
            json_log.logger.info("two")
    json_log.logger.info("three")
    one, two, three = json_log.objects()
    assert (one["run"], one["assignment"]) == ("a", "a/1")
    assert (two["run"], two["assignment"], two["learner"]) == ("b", "a/1", "2")
    assert "worker" not in two
    assert not {"run", "assignment", "learner"} & set(three)


def test_a_log_line_names_its_span(json_log: Log) -> None:
    with remembering() as spans:
        with span("work"):
            json_log.logger.info("within")
        json_log.logger.info("after")
    within, after = json_log.objects()
    assert within["trace_id"] == f"{spans['work'].context.trace_id:032x}"
    assert within["span_id"] == f"{spans['work'].context.span_id:016x}"
    assert "trace_id" not in after


def test_an_answer_whose_caller_has_left_is_no_error() -> None:
    # The type and the logger's name of gRPC's own.
    left = vars(cygrpc)["ExecuteBatchError"]
    for kind, heard in ((left, False), (ValueError, True)):
        error = kind("execute_batch")
        record = logging.getLogger(cygrpc.__name__).makeRecord(
            *(cygrpc.__name__, logging.ERROR, "server.pyx", 1, "raised by %s", ("GetRun",)),
            (kind, error, None),
        )
        assert is_own(record) is heard


def test_refusals_and_tracebacks_alike_are_counted_beyond_twenty_a_minute() -> None:
    log, events, clock = Log(PrintableFormatter("%(message)s")), Events(), Clock()
    flood = FloodFilter(clock)
    (handler,) = log.logger.handlers
    handler.addFilter(flood)
    own = logging.getLogger("lipt.common.observability.logs")
    own.addHandler(handler)
    own.setLevel(logging.INFO)
    try:
        for number in range(100):
            events.record(EventKind.CALL_REFUSED, detail="UNAUTHENTICATED", peer=f"p{number}")
        # Other kinds, other reasons, and what no caller causes.
        events.record(EventKind.CALL_REFUSED, detail="INVALID_CONFIG")
        for number in range(100):
            events.record(EventKind.LEASE_EXPIRED, learner=number)
        texts = log.lines()
        assert len([it for it in texts if "UNAUTHENTICATED" in it]) == 20
        assert len(texts) == 20 + 1 + 100
        assert events.count(EventKind.CALL_REFUSED) == 101
        clock.now += 60.0
        log.logger.info("all is well")
        assert log.lines()[121:] == [
            "and 80 more in a minute: call_refused UNAUTHENTICATED",
            "all is well",
        ]
        events.record(EventKind.CALL_REFUSED, detail="UNAUTHENTICATED")
        assert "UNAUTHENTICATED" in log.lines()[-1]
        before = len(log.lines())
        for _ in range(30):
            log.fail("again")
        assert len([it for it in log.lines()[before:] if it == "it failed"]) == 20
    finally:
        own.removeHandler(handler)
        own.setLevel(logging.NOTSET)
