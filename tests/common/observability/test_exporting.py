"""Processes of their own: a tracer provider is one's for life."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from lipt.common.observability.exporting import wanted_exporters
from tests.collector import collecting

# Nothing listens there.
AWAY = "http://127.0.0.1:9"

PROGRAM = """
import logging, sys
logging.basicConfig(format="%(levelname)s %(message)s")
{before}
from lipt.common.observability.exporting import exporting
from lipt.common.observability.tracing import span
with exporting("lipt-test", instance="one"):
    for number in range(3):
        with span("work"):
            {work}
print("done", "opentelemetry" in sys.modules)
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
        ({}, ()),
        ({"OTEL_SERVICE_NAME": "x"}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": AWAY}, ("otlp_proto_grpc",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": AWAY}, ("otlp_proto_grpc",)),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ("otlp_proto_grpc",)),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
            ("otlp_proto_http",),
        ),
        ({"OTEL_TRACES_EXPORTER": "console, otlp_json_file"}, ("console", "otlp_json_file")),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": AWAY}, ()),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": AWAY}, ()),
    ],
)
def test_opentelemetrys_own_variables_say_where_spans_go(
    environment: dict[str, str], wanted: tuple[str, ...]
) -> None:
    assert wanted_exporters(environment) == wanted


def test_nothing_of_opentelemetry_is_imported_where_nothing_is_asked_for() -> None:
    done = run({})
    assert (done.stdout, done.stderr) == ("done False\n", "")


def test_spans_go_to_the_collector_with_what_the_process_is() -> None:
    with collecting() as collector:
        run(collector.environment | {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=lab"})
        spans = collector.wait_for(lambda spans: len(spans) == 3)
        assert {(span.service, span.name) for span in spans} == {("lipt-test", "work")}
        run(collector.environment | {"OTEL_SERVICE_NAME": "mine"})
        collector.wait_for(lambda spans: sum(span.service == "mine" for span in spans) == 3)


def test_a_collector_that_is_away_is_one_warning_and_stops_nobody() -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": AWAY, "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"}
    # Each of them is an attempt.
    flush = "sys.modules['opentelemetry.trace'].get_tracer_provider().force_flush()"
    done = run(environment, work=f"pass\n        {flush}")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"WARNING spans do not get to {AWAY}: they are dropped")


def test_without_the_extra_the_work_is_done_and_the_log_says_what_to_install() -> None:
    hidden = "sys.modules['opentelemetry'] = None"
    done = run({"OTEL_EXPORTER_OTLP_ENDPOINT": AWAY}, before=hidden)
    assert "WARNING no spans are exported: tracing by OTEL_* needs the package" in done.stderr
    assert "pip install 'lipt[otel]'" in done.stderr


def test_an_exporter_that_nobody_brings_is_named_with_those_there_are() -> None:
    done = run({"OTEL_TRACES_EXPORTER": "smoke"})
    assert "brings the exporter 'smoke'" in done.stderr
    assert "'console'" in done.stderr


def test_a_process_that_traces_already_keeps_its_provider() -> None:
    own = (
        "from opentelemetry import trace; from opentelemetry.sdk.trace import TracerProvider; "
        "own = TracerProvider(); trace.set_tracer_provider(own)"
    )
    run(
        {"OTEL_TRACES_EXPORTER": "console"},
        before=own,
        work="assert trace.get_tracer_provider() is own",
    )
