"""Tracing: spans of OpenTelemetry where the process has imported it, else nothing.

W3C's `traceparent` says across processes which span something is a part of. Spans are exported as
OpenTelemetry's own OTEL_* variables say; they wait in a bounded queue of a thread, and a collector
that is away is a warning.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any

logger = logging.getLogger(__name__)

# The key of W3C Trace Context, in gRPC's metadata as in HTTP's headers.
TRACEPARENT = "traceparent"
# An attribute of a call's span: the number of its gRPC status.
CALL_STATUS = "rpc.grpc.status_code"

_NAME = "lipt"
_EXPORTERS = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_DELAY = "OTEL_BSP_SCHEDULE_DELAY"
# Where OpenTelemetry's packages say which exporters they bring.
_GROUP = "opentelemetry_traces_exporter"
_OF_PROTOCOL = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
# In place of OpenTelemetry's 5 s: a process that is killed takes its last spans along.
_DELAY_MILLISECONDS = 500.0
# A process that ends does not wait for a collector any longer.
_END_SECONDS = 2.0
_EXTRA = {
    "package": "opentelemetry-sdk",
    "extra": "otel",
    "needed_for": "tracing by OTEL_*",
}

# Calls that only wait, or repeat often.
_SPANLESS = frozenset(
    {
        "/lipt.v1.InfoService/GetInfo",
        "/lipt.v1.RunService/GetRun",
        "/lipt.v1.RunService/ListRuns",
        "/lipt.v1.RunService/WatchRun",
        "/lipt.v1.WorkerService/AcquireAssignment",
        "/lipt.v1.WorkerService/Heartbeat",
        "/lipt.v1.WorkerService/Register",
    }
)


class Span:
    """A span that has begun; does nothing where there is no OpenTelemetry."""

    def __init__(self, begun: Any = None) -> None:
        self._begun = begun

    def note(self, **attributes: str | float) -> None:
        """Add attributes, named as `lipt.NAME`; not what is secret, nor a peer's text."""
        self.note_as(_own(attributes))

    def note_as(self, named: dict[str, str | float]) -> None:
        """Add attributes whose names are conventions of OpenTelemetry."""
        if self._begun is not None:
            self._begun.set_attributes(named)

    def fail(self, error_type: str) -> None:
        """Mark it as failed, with a word for the kind of error."""
        api = _api()
        if api is not None and self._begun is not None:
            self._begun.set_status(api.Status(api.StatusCode.ERROR))
            self.note_as({"error.type": error_type})

    def end(self) -> None:
        """End a span that `begin` gave."""
        if self._begun is not None:
            self._begun.end()

    @property
    def traceparent(self) -> str:
        """Its own; empty where there is none."""
        return "" if self._begun is None else _written(self._begun.get_span_context())


def begin(
    name: str,
    *,
    kind: str = "INTERNAL",
    link: str = "",
    named: dict[str, str | float] | None = None,
    **attributes: str | float,
) -> Span:
    """A span that is not current, and that the caller ends.

    `link` is another span's `traceparent`; `named` has attributes under names of OpenTelemetry's.
    """
    api = _api()
    if api is None:
        return Span()
    other = _remote(link)
    return Span(
        _tracer(api.get_tracer_provider()).start_span(
            name,
            kind=api.SpanKind[kind],
            attributes={**(named or {}), **_own(attributes)},
            links=() if other is None else (api.Link(other.get_span_context()),),
        )
    )


@contextmanager
def within(begun: Span) -> Iterator[Span]:
    """Make a span current in the block, and end it there; an error fails it."""
    with _current(begun._begun, ends=True):  # noqa: SLF001 - its own module's
        try:
            yield begun
        except Exception as error:
            begun.fail(_kind_of(error))
            raise
        except BaseException:  # cancelled, or dropped: nobody's fault
            begun.note(interrupted=True)
            raise


@contextmanager
def span(name: str, *, link: str = "", **attributes: str | float) -> Iterator[Span]:
    """The block as a span within the one that is current; an error in it fails it."""
    with within(begin(name, kind="INTERNAL", link=link, named=None, **attributes)) as begun:
        yield begun


def is_spanless(method: str) -> bool:
    """Whether calls of a method (`/package.Service/Method`) are no spans."""
    return method in _SPANLESS or not method.startswith("/lipt.v1.")


def begin_call(method: str, kind: str) -> Span:
    """The span of a call, at its client or its server."""
    service, _, name = method.removeprefix("/").partition("/")
    named = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
    return begin(method.removeprefix("/"), kind=kind, named={**named})


def is_tracing() -> bool:
    """Whether this process has a tracer provider, its own or this package's."""
    api = _api()
    return api is not None and not isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)


def current_traceparent() -> str:
    """What a call takes along; empty where there is no trace."""
    api = _api()
    return "" if api is None else _written(api.get_current_span().get_span_context())


def received(metadata: Any) -> str:
    """The `traceparent` in a peer's metadata; empty where there is none, or not one."""
    found = [str(value) for key, value in metadata or () if key == TRACEPARENT]
    remote = _remote(found[0]) if len(found) == 1 else None
    return "" if remote is None else _written(remote.get_span_context())


@contextmanager
def attached(traceparent: str) -> Iterator[None]:
    """Make what the block does a part of another process's span; nothing where that is empty."""
    with _current(_remote(traceparent), ends=False):
        yield


def join(traceparent: str) -> None:
    """Make all that this task does from here on a part of another process's span."""
    api, remote = _api(), _remote(traceparent)
    if api is not None and remote is not None:
        sys.modules["opentelemetry.context"].attach(api.set_span_in_context(remote))


def _api() -> Any:
    # Who has never imported it has no tracer provider either.
    return sys.modules.get("opentelemetry.trace")


@contextmanager
def _current(begun: Any, *, ends: bool) -> Iterator[None]:
    api = _api()
    if api is None or begun is None:
        yield
        return
    with api.use_span(
        begun, end_on_exit=ends, record_exception=False, set_status_on_exception=False
    ):
        yield


@lru_cache(maxsize=1)
def _tracer(provider: Any) -> Any:
    # To make one takes as long as a span.
    return provider.get_tracer(_NAME)


def _remote(traceparent: str) -> Any:
    """Another process's span; None where the text is not one, or nobody here could use it."""
    api = _api()
    if api is None or not traceparent:
        return None
    w3c = import_module("opentelemetry.trace.propagation.tracecontext")
    context = w3c.TraceContextTextMapPropagator().extract({TRACEPARENT: traceparent})
    found = api.get_current_span(context)
    return found if found.get_span_context().is_valid else None


def _written(context: Any) -> str:
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"


def _own(attributes: dict[str, str | float]) -> dict[str, str | float]:
    return {f"{_NAME}.{name}": value for name, value in attributes.items()}


def _kind_of(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return reason if isinstance(reason, str) and reason.isupper() else type(error).__name__


@contextmanager
def exporting(
    service: str, *, instance: str = "", problem_level: int = logging.WARNING
) -> Iterator[None]:
    """Export the spans of the block, unless the process already has a tracer provider."""
    provider = None
    if wanted := wanted_exporters(os.environ):
        try:
            provider = _set_up(wanted, service, instance)
        except Exception as error:  # noqa: BLE001 - what is wrong with tracing stops nobody
            logger.log(problem_level, "no spans are exported: %s", error)
    try:
        yield
    finally:
        if provider is not None:
            # It would wait for half a minute where the collector hangs.
            ending = threading.Thread(target=provider.shutdown, daemon=True)
            ending.start()
            ending.join(_END_SECONDS)


def wanted_exporters(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The exporters that OTEL_* variables ask for, by the names that OpenTelemetry has for them."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ()
    named = environment.get(_EXPORTERS, "")
    if not named and any(environment.get(endpoint) for endpoint in _ENDPOINTS):
        named = "otlp"
    protocol = next(filter(None, map(environment.get, _PROTOCOLS)), "grpc")
    return tuple(
        _OF_PROTOCOL.get(protocol, f"otlp over {protocol}") if name == "otlp" else name
        for name in map(str.strip, named.split(","))
        if name not in {"", "none"}
    )


def _set_up(wanted: Sequence[str], service: str, instance: str) -> Any:
    from lipt.common.imports import import_extra, require_extra  # noqa: PLC0415 - imports gRPC

    require_extra("opentelemetry", **_EXTRA)
    trace = import_module("opentelemetry.trace")
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    exporters = [_exporter(name) for name in wanted]
    sdk = import_extra("opentelemetry.sdk.trace", **_EXTRA)
    processing = import_extra("opentelemetry.sdk.trace.export", **_EXTRA)
    # Own spans say what goes wrong on their way: the SDK would, at each attempt.
    if not logger.isEnabledFor(logging.DEBUG):
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    provider = sdk.TracerProvider(resource=_resource(service, instance), shutdown_on_exit=False)
    delay = None if os.environ.get(_DELAY) else _DELAY_MILLISECONDS
    for exporter in exporters:
        provider.add_span_processor(
            processing.BatchSpanProcessor(_OnceTold(exporter), schedule_delay_millis=delay)
        )
    trace.set_tracer_provider(provider)
    logger.info("spans are exported by %s", ", ".join(wanted))
    return provider


def _exporter(name: str) -> Any:
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes 30 ms

    from lipt.common.errors import ConfigError, MissingExtraError  # noqa: PLC0415 - imports gRPC

    for entry in entry_points(group=_GROUP, name=name):
        return entry.load()()
    if name == _OF_PROTOCOL["grpc"]:
        raise MissingExtraError(
            "opentelemetry-exporter-otlp-proto-grpc", extra="otel", needed_for=_EXTRA["needed_for"]
        )
    raise ConfigError(
        f"no installed package brings the exporter {name!r} that {_EXPORTERS} or "
        f"{_PROTOCOLS[-1]} names; there are {sorted(entry_points(group=_GROUP).names)}. "
        "Install the package of OpenTelemetry's that has it, or name another."
    )


def _resource(service: str, instance: str) -> Any:
    from importlib.metadata import version  # noqa: PLC0415 - takes 30 ms

    resources = import_module("opentelemetry.sdk.resources")
    own = {
        "service.name": service,
        "service.version": version("lipt"),
        "service.instance.id": instance or f"{platform.node()}-{os.getpid()}",
    }
    # What the operator says of it wins.
    said = resources.OTELResourceDetector().detect()
    return resources.Resource.create(own).merge(said)


class _OnceTold:
    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self._away = False

    def export(self, spans: Sequence[Any]) -> Any:
        result = self._exporter.export(spans)
        away = result.name != "SUCCESS"
        if away and not self._away:
            where = next(filter(None, map(os.environ.get, _ENDPOINTS)), "localhost")
            logger.warning(
                "spans do not get to %s: they are dropped until they do. Nothing else waits.", where
            )
        elif self._away and not away:
            logger.warning("spans get through again")
        self._away = away
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return bool(self._exporter.force_flush(timeout_millis))
