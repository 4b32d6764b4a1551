"""Metrics: counters and gauges over HTTP at `/metrics`, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from lipt.common.errors import ConfigError
from lipt.common.imports.extras import import_extra
from lipt.common.network.address import split_address
from lipt.common.network.tls import TlsFiles
from lipt.common.observability.events import Events
from lipt.common.observability.serving import serving_http

# Which side answered a scrape is the scraper's label; names are the same on both.
_EVENTS = "lipt_events"
_EVENTS_HELP = "What happened since the process started, by kind and detail."


@dataclass(frozen=True)
class Gauge:
    """A figure of this moment, by the values of one label; a figure alone has the label "".

    Attributes:
        name: as Prometheus shows it, with its unit.
        text: what it counts.
        label: what `values` are told apart by.
        values: figures by the label's value.
    """

    name: str
    text: str
    label: str
    values: dict[str, float]


Gauges = Callable[[], tuple[Gauge, ...]]


@contextmanager
def serving_metrics(
    listen: str, tls: TlsFiles | None, events: Events, gauges: Gauges
) -> Iterator[str]:
    """Answer scrapes from a thread of its own until the block ends.

    Args:
        listen: host:port; port 0 takes a free one.
        tls: the certificate to serve HTTPS with, and with `ca` whose scrapers are let in; read
            again when the files change.
        events: what is counted.
        gauges: the figures of this moment; called in the serving thread at every scrape.

    Yields:
        The address that is served.

    Raises:
        MissingExtraError: prometheus-client is not installed.
        ConfigError: the address is not host:port, or cannot be had.
    """
    prometheus = _import("prometheus_client")
    families = _import("prometheus_client.core")
    host, port = split_address(listen)
    registry = prometheus.CollectorRegistry()
    registry.register(_Collector(families, events, gauges))
    application = prometheus.make_wsgi_app(registry)
    with ExitStack() as stack:
        try:
            served = stack.enter_context(serving_http(host, port, application, tls))
        except OSError as error:
            raise ConfigError(
                f"--metrics-listen {listen}: {error.strerror or error}. Choose another address."
            ) from None
        yield f"[{host}]:{served}" if ":" in host else f"{host}:{served}"


def _import(module: str) -> Any:
    return import_extra(
        module, package="prometheus-client", extra="metrics", needed_for="--metrics-listen"
    )


class _Collector:
    """Reads the figures when they are asked for, so that nothing is kept twice."""

    def __init__(self, families: Any, events: Events, gauges: Gauges) -> None:
        self._families = families
        self._events = events
        self._gauges = gauges

    def collect(self) -> Iterator[Any]:
        """Every metric as it stands."""
        counter = self._families.CounterMetricFamily(
            _EVENTS, _EVENTS_HELP, labels=("event", "detail")
        )
        for (kind, detail), number in self._events.counts().items():
            counter.add_metric((kind.value, detail), number)
        yield counter
        for gauge in self._gauges():
            family = self._families.GaugeMetricFamily(
                gauge.name, gauge.text, labels=(gauge.label,) if gauge.label else ()
            )
            for value, figure in gauge.values.items():
                family.add_metric((value,) if gauge.label else (), figure)
            yield family
