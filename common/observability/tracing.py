"""Tracing: OpenTelemetry spans, their export, and the W3C `traceparent` that joins processes.

Without a tracer provider, spans do nothing. OTEL_* variables ask for export by OTLP, which needs
the extra `otel`.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

logger = logging.getLogger(__name__)

# Key of W3C Trace Context, in gRPC metadata and HTTP headers.
TRACEPARENT = "traceparent"
CALL_STATUS = "rpc.grpc.status_code"

_W3C = TraceContextTextMapPropagator()
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# OpenTelemetry's 5 s would lose too many spans of a killed process.
_DELAY_MILLISECONDS = 500.0
_END_SECONDS = 2.0
_EXTRA = {"extra": "otel", "needed_for": "tracing by OTEL_*"}


class Span:
    """A started span."""

    def __init__(self, begun: trace.Span) -> None:
        self.begun = begun

    def note(self, **attributes: str | float) -> None:
        """Add attributes, named `lipt.NAME`; never secrets or a peer's text."""
        self.begun.set_attributes(_own(attributes))

    def fail(self, error_type: str) -> None:
        self.begun.set_status(trace.StatusCode.ERROR)
        self.begun.set_attribute("error.type", error_type)

    @property
    def traceparent(self) -> str:
        return _written(self.begun)


@contextmanager
def current(span: Span) -> Iterator[Span]:
    """Make a span current in the block, then end it; an error fails it."""
    with trace.use_span(
        span.begun, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        try:
            yield span
        except Exception as error:
            reason = getattr(error, "reason", None)
            known = isinstance(reason, str) and reason.isupper()
            span.fail(str(reason) if known else type(error).__name__)
            raise
        except BaseException:  # cancelled or dropped
            span.note(interrupted=True)
            raise


@contextmanager
def span(name: str, *, link: str = "", **attributes: str | float) -> Iterator[Span]:
    """Run the block as a child span; `link` is a related span's `traceparent`."""
    related = trace.get_current_span(_context_of(link)) if link else None
    links = () if related is None else (trace.Link(related.get_span_context()),)
    tracer = trace.get_tracer("lipt")
    begun = tracer.start_span(name, attributes=_own(attributes), links=links)
    with current(Span(begun)) as within:
        yield within


def begin_call(method: str, kind: trace.SpanKind) -> Span:
    service, _, name = method.removeprefix("/").partition("/")
    named = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
    tracer = trace.get_tracer("lipt")
    return Span(tracer.start_span(method.removeprefix("/"), kind=kind, attributes=named))


def is_tracing() -> bool:
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def current_traceparent() -> str:
    return _written(trace.get_current_span())


def received(metadata: Any) -> str:
    """The only valid `traceparent` in a peer's metadata, or ""."""
    traceparents = [str(value) for key, value in metadata or () if key == TRACEPARENT]
    return (
        _written(trace.get_current_span(_context_of(traceparents[0])))
        if len(traceparents) == 1
        else ""
    )


@contextmanager
def attached(traceparent: str) -> Iterator[None]:
    """Run the block as part of another process's span, unless `traceparent` is invalid."""
    token = contexts.attach(_context_of(traceparent, contexts.get_current()))
    try:
        yield
    finally:
        contexts.detach(token)


def join(traceparent: str) -> None:
    """Make the rest of this task part of another process's span."""
    contexts.attach(_context_of(traceparent, contexts.get_current()))


def _context_of(traceparent: str, otherwise: contexts.Context | None = None) -> contexts.Context:
    return _W3C.extract({TRACEPARENT: traceparent}, otherwise or contexts.Context())


def _written(span: trace.Span) -> str:
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"


def _own(attributes: Mapping[str, str | float]) -> dict[str, str | float]:
    return {f"lipt.{name}": value for name, value in attributes.items()}


@contextmanager
def exporting(
    service: str, *, instance: str = "", problem_level: int = logging.WARNING
) -> Iterator[None]:
    """Export spans during the block, unless the process has a tracer provider."""
    provider = None
    if wants_export(os.environ) and not is_tracing():
        try:
            provider = _provider(service, instance)
            trace.set_tracer_provider(provider)
        except Exception as error:  # noqa: BLE001 - tracing must not stop a service
            logger.log(problem_level, "no spans are exported: %s", error)
    try:
        yield
    finally:
        if provider is not None:
            # Shutdown takes half a minute if the collector hangs.
            ending = threading.Thread(target=provider.shutdown, daemon=True)
            ending.start()
            ending.join(_END_SECONDS)


def wants_export(environment: Mapping[str, str]) -> bool:
    """Whether OTEL_* variables ask for spans by OTLP."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    named = environment.get("OTEL_TRACES_EXPORTER")
    return named == "otlp" or (not named and any(map(environment.get, _ENDPOINTS)))


def _provider(service: str, instance: str) -> Any:
    from importlib.metadata import version  # noqa: PLC0415 - takes 30 ms

    from lipt.common.imports import import_extra  # noqa: PLC0415 - imports gRPC

    sdk = import_extra("opentelemetry.sdk.trace", package="opentelemetry-sdk", **_EXTRA)
    processing = import_module("opentelemetry.sdk.trace.export")
    resources = import_module("opentelemetry.sdk.resources")
    over = "http" if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") == "http/protobuf" else "grpc"
    package = f"opentelemetry-exporter-otlp-proto-{over}"
    otlp = import_extra(
        f"opentelemetry.exporter.otlp.proto.{over}.trace_exporter", package=package, **_EXTRA
    )
    own = {
        "service.name": service,
        "service.version": version("lipt"),
        "service.instance.id": instance or f"{platform.node()}-{os.getpid()}",
    }
    # The operator's OTEL_RESOURCE_ATTRIBUTES take precedence.
    said = resources.OTELResourceDetector().detect()
    resource = resources.Resource.create(own).merge(said)
    provider = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
    # The SDK logs every failed attempt; `_LogFailuresOnce` logs only the first.
    if not logger.isEnabledFor(logging.DEBUG):
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    delay = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else _DELAY_MILLISECONDS
    exporter = _LogFailuresOnce(otlp.OTLPSpanExporter())
    processor = processing.BatchSpanProcessor(exporter, schedule_delay_millis=delay)
    provider.add_span_processor(processor)
    logger.info("spans are exported over %s", over)
    return provider


class _LogFailuresOnce:
    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self._away = False
        self.shutdown, self.force_flush = exporter.shutdown, exporter.force_flush

    def export(self, spans: Sequence[Any]) -> Any:
        result = self._exporter.export(spans)
        away = result.name != "SUCCESS"
        if away and not self._away:
            where = next(filter(None, map(os.environ.get, _ENDPOINTS)), "localhost")
            logger.warning("spans do not get to %s: they are dropped until they do", where)
        elif self._away and not away:
            logger.warning("spans get through again")
        self._away = away
        return result
