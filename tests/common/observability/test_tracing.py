from __future__ import annotations

import sys

import pytest

from lipt.common.errors import ConfigError
from lipt.common.observability.tracing import (
    attached,
    begin,
    current_traceparent,
    is_tracing,
    span,
    within,
)
from tests.remembered_spans import remembering

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (GIVEN, GIVEN),
        # Flags that this version does not know are not handed on, nor is what a later one says.
        (f"00-{TRACE}-{SPAN}-ff", GIVEN),
        (f"cc-{TRACE}-{SPAN}-01-what.the-future-says", GIVEN),
        ("", ""),
        ("garbage", ""),
        (f"{GIVEN}-more", ""),
        (f"00-{'0' * 32}-{SPAN}-01", ""),
        (f"00-{TRACE[:-1]}-{SPAN}-01", ""),
    ],
)
def test_a_peers_traceparent_is_read_or_left_out(text: str, read: str) -> None:
    with remembering(), attached(text):
        assert current_traceparent() == read


def test_without_opentelemetry_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    assert not is_tracing()
    with span("outer", run_id="r") as outer, attached(GIVEN):
        outer.note(bytes=1)
        outer.fail("X")
        assert outer.traceparent == current_traceparent() == ""
    begin("call").end()
    assert "opentelemetry.trace" not in sys.modules


def test_a_span_is_within_the_one_around_it_and_within_what_was_attached() -> None:
    with remembering() as spans:
        assert is_tracing()
        with (
            attached(GIVEN),
            within(begin("outer", kind="SERVER", run_id="r", named={"rpc.system": "grpc"})),
        ):
            with span("inner") as inner:
                inner.note(bytes=3)
                assert inner.traceparent == current_traceparent()
            called = begin("call", kind="CLIENT")
            called.end()
        assert current_traceparent() == ""
    assert spans.names() == ["inner", "call", "outer"]
    outer = spans["outer"]
    assert outer.parent is not None
    assert f"{outer.parent.span_id:016x}" == SPAN
    assert f"{outer.context.trace_id:032x}" == TRACE
    assert outer.kind.name == "SERVER"
    assert outer.attributes == {"lipt.run_id": "r", "rpc.system": "grpc"}
    for name in ("inner", "call"):
        assert spans[name].parent == outer.context
    assert spans["inner"].attributes == {"lipt.bytes": 3}


def test_another_trace_can_be_named() -> None:
    with remembering() as spans, span("outer", link=GIVEN):
        pass
    (link,) = spans["outer"].links
    assert f"{link.context.trace_id:032x}" == TRACE
    assert spans["outer"].context.trace_id != link.context.trace_id


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("a secret, or a peer's text"), "INVALID_CONFIG"),
        (ValueError("as well"), "ValueError"),
    ],
)
def test_an_error_fails_its_span_by_its_kind_alone(error: Exception, kind: str) -> None:
    with remembering() as spans, pytest.raises(type(error)), span("outer"):
        raise error
    failed = spans["outer"]
    assert failed.status.status_code.name == "ERROR"
    assert failed.status.description is None
    assert failed.attributes == {"error.type": kind}
    assert not failed.events
