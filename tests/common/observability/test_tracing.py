import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
from opentelemetry.trace import SpanKind

from lipt.common.errors import ConfigError
from lipt.common.observability.tracing import (
    attached,
    begin_call,
    current,
    current_traceparent,
    is_tracing,
    received,
    span,
    wants_export,
)
from tests.collector import collecting
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
def test_a_peer_s_traceparent_is_read_or_ignored(text: str, read: str) -> None:
    with remembering(), attached(text):
        assert current_traceparent() == received((("x", "y"), ("traceparent", text))) == read
        # Of two traces none is taken.
        assert received((("traceparent", GIVEN), ("traceparent", GIVEN))) == received(None) == ""


def test_spans_nest_and_continue_an_attached_trace() -> None:
    with remembering() as spans:
        assert is_tracing()
        with attached(GIVEN):
            outer = begin_call("/lipt.v1.S/outer", SpanKind.SERVER)
            with current(outer), span("inner", run_id="r") as inner:
                inner.note(bytes=3)
                assert inner.traceparent == current_traceparent()
        assert current_traceparent() == ""
    assert spans.names() == ["inner", "lipt.v1.S/outer"]
    found = spans["lipt.v1.S/outer"]
    assert found.parent is not None
    assert f"{found.parent.span_id:016x}" == SPAN
    assert f"{found.context.trace_id:032x}" == TRACE
    assert found.kind.name == "SERVER"
    assert found.attributes["rpc.system"] == "grpc"
    assert spans["inner"].parent == found.context
    assert spans["inner"].attributes == {"lipt.run_id": "r", "lipt.bytes": 3}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("a secret, or a peer's text"), "INVALID_CONFIG"),
        (ValueError("as well"), "ValueError"),
    ],
)
def test_an_error_marks_its_span_with_its_class_only(error: Exception, kind: str) -> None:
    with remembering() as spans, pytest.raises(type(error)), span("outer"):
        raise error
    failed = spans["outer"]
    assert failed.status.status_code.name == "ERROR"
    assert failed.status.description is None
    assert failed.attributes == {"error.type": kind}
    assert not failed.events


# Nothing listens there.
AWAY = "http://127.0.0.1:9"

PROGRAM = """
import logging, sys
logging.basicConfig(format="%(levelname)s %(message)s")
{before}
from lipt.common.observability.tracing import exporting
from lipt.common.observability.tracing import span
with exporting("lipt-test", instance="one"):
    for number in range(3):
        with span("work"):
            {work}
print("done", "opentelemetry.sdk" in sys.modules)
"""


def run(
    environment: Mapping[str, str], *, before: str = "", work: str = "pass"
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before, work=work)],
        env=clean | dict(environment),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("done")
    return done


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": AWAY}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": AWAY}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": AWAY}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": AWAY}, False),
    ],
)
def test_otel_environment_variables_apply(environment: dict[str, str], wanted: bool) -> None:
    assert wants_export(environment) is wanted


def test_spans_are_exported_with_the_process_s_attributes() -> None:
    with collecting() as collector:
        run(collector.environment | {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=lab"})
        spans = collector.wait_for(lambda spans: len(spans) == 3)
        assert {(span.service, span.name) for span in spans} == {("lipt-test", "work")}
        run(collector.environment | {"OTEL_SERVICE_NAME": "mine"})
        collector.wait_for(lambda spans: sum(span.service == "mine" for span in spans) == 3)


def test_work_continues_without_collector_or_extra() -> None:
    done = run({})
    assert (done.stdout, done.stderr) == ("done False\n", "")
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": AWAY, "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"}
    # Each of them is an attempt.
    flush = "sys.modules['opentelemetry.trace'].get_tracer_provider().force_flush()"
    done = run(environment, work=f"pass\n        {flush}")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"WARNING spans do not get to {AWAY}: they are dropped")
    hidden = "sys.modules['opentelemetry.sdk'] = None"
    done = run({"OTEL_EXPORTER_OTLP_ENDPOINT": AWAY}, before=hidden)
    assert "WARNING no spans are exported: tracing by OTEL_* needs the package" in done.stderr
    assert "pip install '.[otel]'" in done.stderr
    own = (
        "from opentelemetry import trace; from opentelemetry.sdk.trace import TracerProvider; "
        "own = TracerProvider(); trace.set_tracer_provider(own)"
    )
    work = "assert trace.get_tracer_provider() is own"
    run({"OTEL_TRACES_EXPORTER": "otlp"}, before=own, work=work)
