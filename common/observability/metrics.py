"""Metrics: the instruments of a process over HTTP at `/metrics`, in Prometheus' text format.

Figures are put together when they are asked for. The library makes text of them; what is measured
is in `meters`, and works without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate
from typing import Any

from lipt.common.errors import ConfigError
from lipt.common.imports.extras import import_extra
from lipt.common.network.address import split_address
from lipt.common.network.tls import TlsFiles
from lipt.common.observability.events import Events
from lipt.common.observability.instruments import (
    BUILD,
    CERTIFICATE_EXPIRY,
    EVENTS,
    EVERYWHERE,
    Counter,
    Gauge,
    Histogram,
    Instrument,
    Readings,
)
from lipt.common.observability.meters import Distribution, Meters
from lipt.common.observability.serving import serving_http
from lipt.common.process.devices import versions


@contextmanager
def serving_metrics(
    listen: str,
    tls: TlsFiles | None,
    events: Events,
    meters: Meters,
    instruments: Sequence[Instrument],
    readings: Callable[[], Readings],
) -> Iterator[str]:
    """Answer scrapes from a thread of its own until the block ends.

    Args:
        listen: host:port; port 0 takes a free one.
        tls: the certificate to serve HTTPS with, and with `ca` whose scrapers are let in; read
            again when the files change.
        events: what is counted.
        meters: what was recorded.
        instruments: what this process declares; those of both services are shown besides.
        readings: the figures of this moment; called in the serving thread at every scrape.

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
    # Memory, processor time and open files of this process, under the names that all services use.
    prometheus.ProcessCollector(registry=registry)

    def read() -> Readings:
        return {**_of_both(events, tls), **readings()}

    registry.register(_Collector(families, meters, (*EVERYWHERE, *instruments), read))
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


def _of_both(events: Events, tls: TlsFiles | None) -> Readings:
    """What both services show."""
    counts = {(kind.value, detail): float(n) for (kind, detail), n in events.counts().items()}
    expiry: dict[tuple[str, ...], float] = {}
    if tls is not None:
        with suppress(ConfigError):  # replaced at this moment; the next scrape sees the new one
            end = tls.expires_at()
            expiry = {} if end is None else {(): end.timestamp()}
    running = versions()
    return {
        EVENTS: dict.fromkeys(EVENTS.from_the_start, 0.0) | counts,
        BUILD: {(running["lipt"], running["python"], running["torch"]): 1.0},
        CERTIFICATE_EXPIRY: expiry,
    }


class _Collector:
    """Makes the library's families of instruments, each time that it is asked to."""

    def __init__(
        self,
        families: Any,
        meters: Meters,
        instruments: Sequence[Instrument],
        read: Callable[[], Readings],
    ) -> None:
        self._families = families
        self._meters = meters
        self._instruments = instruments
        self._read = read

    def collect(self) -> Iterator[Any]:
        """Every metric as it stands."""
        readings = self._read()
        for instrument in self._instruments:
            match instrument:
                case Histogram():
                    yield self._histogram(instrument, self._meters.distributions(instrument))
                case Counter() | Gauge():
                    found = readings.get(instrument) or self._meters.sums(instrument)
                    yield self._family(instrument, found)

    def describe(self) -> tuple[Any, ...]:
        """Nothing: who registers this has nothing else, and no scrape is to come of that."""
        return ()

    def _histogram(self, histogram: Histogram, found: dict[tuple[str, ...], Distribution]) -> Any:
        family = self._families.HistogramMetricFamily(
            histogram.name, histogram.text, labels=histogram.labels
        )
        bounds = [*(f"{float(bound)}" for bound in histogram.buckets), "+Inf"]
        for labels, distribution in found.items():
            numbers = accumulate(distribution.counts)
            buckets = list(zip(bounds, numbers, strict=True))
            family.add_metric(labels, buckets=buckets, sum_value=distribution.total)
        return family

    def _family(self, instrument: Counter | Gauge, found: Mapping[tuple[str, ...], float]) -> Any:
        make = (
            self._families.CounterMetricFamily
            if isinstance(instrument, Counter)
            else self._families.GaugeMetricFamily
        )
        family = make(instrument.name, instrument.text, labels=instrument.labels)
        for labels, figure in found.items():
            family.add_metric(labels, figure)
        return family
