"""A tracer provider that keeps what ends, for tests within one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Remembered:
    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def __getitem__(self, name: str) -> Any:
        (found,) = (span for span in self._exporter.get_finished_spans() if span.name == name)
        return found

    def all(self) -> tuple[Any, ...]:
        return self._exporter.get_finished_spans()

    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]


@contextmanager
def remembering() -> Iterator[Remembered]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # A process has one for life, by OpenTelemetry's own functions.
    with patch.object(trace, "_TRACER_PROVIDER", provider):
        yield Remembered(exporter)
