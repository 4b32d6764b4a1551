"""Exporting: this process's spans to a collector, as OpenTelemetry's own OTEL_* variables say.

Spans wait in a bounded queue of a thread; a collector that is away is a warning.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points, version
from typing import Any

logger = logging.getLogger(__name__)

_EXPORTERS = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_DELAY = "OTEL_BSP_SCHEDULE_DELAY"
_SERVICE_NAME = "OTEL_SERVICE_NAME"
# Where OpenTelemetry's packages say which exporters they bring.
_GROUP = "opentelemetry_traces_exporter"
_OF_PROTOCOL = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
# In place of OpenTelemetry's 5 s: a process that is killed takes its last spans along.
_DELAY_MILLISECONDS = 500.0
# A process that ends does not wait for a collector any longer.
_END_SECONDS = 2.0


@contextmanager
def exporting(
    service: str, *, instance: str = "", problem_level: int = logging.WARNING
) -> Iterator[None]:
    """Export the spans of the block, unless the process already has a tracer provider."""
    provider = None
    if wanted := wanted_exporters(os.environ):
        try:
            provider = _set_up(wanted, service, instance)
        except Exception as error:  # noqa: BLE001 - what is wrong with tracing stops nobody's work
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
    from lipt.common.imports import require_extra  # noqa: PLC0415 - it imports gRPC

    require_extra(
        "opentelemetry", package="opentelemetry-sdk", extra="otel", needed_for="tracing by OTEL_*"
    )
    trace = import_module("opentelemetry.trace")
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    exporters = [_exporter(name) for name in wanted]
    sdk, processing = _import("opentelemetry.sdk.trace"), _import("opentelemetry.sdk.trace.export")
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


def _import(module: str) -> Any:
    from lipt.common.imports import import_extra  # noqa: PLC0415 - as above

    return import_extra(
        module, package="opentelemetry-sdk", extra="otel", needed_for="tracing by OTEL_*"
    )


def _exporter(name: str) -> Any:
    from lipt.common.errors import ConfigError, MissingExtraError  # noqa: PLC0415 - as above

    for entry in entry_points(group=_GROUP, name=name):
        return entry.load()()
    if name == _OF_PROTOCOL["grpc"]:
        raise MissingExtraError(
            "opentelemetry-exporter-otlp-proto-grpc", extra="otel", needed_for="tracing by OTEL_*"
        )
    raise ConfigError(
        f"no installed package brings the exporter {name!r} that {_EXPORTERS} or "
        f"{_PROTOCOLS[-1]} names; there are {sorted(entry_points(group=_GROUP).names)}. "
        "Install the package of OpenTelemetry's that has it, or name another."
    )


def _resource(service: str, instance: str) -> Any:
    resources = _import("opentelemetry.sdk.resources")
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
