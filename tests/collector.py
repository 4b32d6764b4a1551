"""A collector of traces: OTLP over gRPC, as real ones speak it, which keeps what it gets."""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Spanned:
    """A span as it came in; `links` are traces that it names, `error` is what it failed with."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: Mapping[str, Any]
    links: tuple[str, ...]
    error: str = ""


class Collector(TraceServiceServicer):
    def __init__(self) -> None:
        self.environment: dict[str, str] = {}
        self._spans: list[Spanned] = []
        self._news = threading.Condition()

    def Export(self, request: pb.ExportTraceServiceRequest, context: object) -> Any:
        spans = [
            _spanned(span, _values(resource.resource.attributes))
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._news:
            self._spans += spans
            self._news.notify_all()
        return pb.ExportTraceServiceResponse()

    def spans(self) -> list[Spanned]:
        with self._news:
            return sorted(self._spans, key=lambda span: span.start)

    def wait_for(self, enough: Callable[[list[Spanned]], object]) -> list[Spanned]:
        with self._news:
            assert self._news.wait_for(lambda: enough(self._spans), _PATIENCE_SECONDS), tree(
                self._spans
            )
        return self.spans()


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2), options=(("grpc.so_reuseport", 0),))
    add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    collector.environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


def tree(spans: list[Spanned]) -> str:
    known = {span.span_id for span in spans}
    lines: list[str] = []

    def draw(parent: str, depth: int) -> None:
        for span in sorted(spans, key=lambda span: span.start):
            if span.parent_id == parent or (not depth and span.parent_id not in known):
                error = f" [{span.error}]" if span.error else ""
                lines.append(f"{'  ' * depth}{span.name} ({span.service}){error}")
                draw(span.span_id, depth + 1)

    draw("", 0)
    return "\n".join(lines)


def _spanned(span: Any, resource: Mapping[str, Any]) -> Spanned:
    attributes = _values(span.attributes)
    return Spanned(
        service=resource["service.name"],
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=attributes,
        links=tuple(link.trace_id.hex() for link in span.links),
        error=attributes.get("error.type", "unknown") if span.status.code == 2 else "",
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
