"""Metrics: declared instruments, measurements, and an endpoint for Prometheus."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler

import prometheus_client
from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from lipt.common.access.tls import TlsFiles, served_url, server_context, split_address
from lipt.common.errors import ConfigError
from lipt.common.observability.logs import KNOWN_DETAILS, EventKind, Events
from lipt.common.process.devices import versions

logger = logging.getLogger(__name__)

# Most values of one label: bounds the series that peers can create.
_MOST = 64
OTHER = "other"
_SILENCE_SECONDS = 30.0
_MOST_SCRAPERS = 64

Labels: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Instrument:
    """A metric's declaration; label values after the first `most` become `OTHER`.

    Label values `at_zero` are shown before the first event. `buckets` are a histogram's upper
    bounds.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()
    most: int = _MOST
    at_zero: tuple[Labels, ...] = ()
    buckets: tuple[float, ...] = ()


class Counter(Instrument):
    """A growing count."""


class Gauge(Instrument):
    """A current value."""


class Histogram(Instrument):
    """Observations counted by size."""


# Current values, by label values.
Readings: TypeAlias = Mapping[Instrument, Mapping[Labels, float]]

EVENTS = Counter(
    "lipt_events_total",
    "Events since the process started, by kind and detail.",
    ("event", "detail"),
    at_zero=tuple(
        (kind.value, detail) for kind in EventKind for detail in KNOWN_DETAILS.get(kind, ("",))
    ),
)
BUILD = Gauge(
    "lipt_build_info",
    "1, by the versions that run: of lipt, of Python, of PyTorch.",
    ("version", "python", "torch"),
)
CERTIFICATE_EXPIRY = Gauge(
    "lipt_certificate_expiry_timestamp_seconds",
    "When this side's own certificate expires, in seconds since 1970; absent without one.",
)
EVERYWHERE: tuple[Instrument, ...] = (EVENTS, BUILD, CERTIFICATE_EXPIRY)


class Meters:
    """The counters and histograms of one process; safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[Instrument, Any] = {}
        self._seen: dict[tuple[Instrument, str], set[str]] = defaultdict(set)

    def add(self, counter: Counter | Gauge, *labels: str, by: float = 1.0) -> None:
        self._series(counter, labels).inc(by)

    def observe(self, histogram: Histogram, value: float, *labels: str) -> None:
        self._series(histogram, labels).observe(value)

    def families(self, instrument: Instrument) -> list[Any]:
        """Prometheus's view of an instrument; empty for an unset gauge."""
        with self._lock:
            if isinstance(instrument, Gauge) and instrument not in self._made:
                return []
            metric = self._metric(instrument)
        return list(metric.collect())

    def _series(self, instrument: Instrument, labels: Labels) -> Any:
        with self._lock:
            metric = self._metric(instrument)
            shown = [
                self._limited(instrument, name, value)
                for name, value in zip(instrument.labels, labels, strict=True)
            ]
            return metric.labels(*shown) if shown else metric

    def _metric(self, instrument: Instrument) -> Any:
        if instrument not in self._made:
            options = {"buckets": instrument.buckets} if instrument.buckets else {}
            make: Any = getattr(prometheus_client, type(instrument).__name__)
            metric = make(
                instrument.name, instrument.text, instrument.labels, registry=None, **options
            )
            for labels in instrument.at_zero:
                metric.labels(*labels)
            self._made[instrument] = metric
        return self._made[instrument]

    def _limited(self, instrument: Instrument, label: str, value: str) -> str:
        seen = self._seen[instrument, label]
        if value not in seen and value != OTHER:
            if len(seen) >= instrument.most:
                return OTHER
            seen.add(value)
        return value


class Phases:
    """Time spent in each phase, including the current one; safe in any thread."""

    def __init__(self, *phases: str, clock: Callable[[], float] = perf_counter) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._seconds = dict.fromkeys(phases, 0.0)
        self._current, self._since = phases[0], clock()

    def enter(self, phase: str) -> None:
        self.seconds()
        self._current = phase

    def seconds(self) -> dict[Labels, float]:
        with self._lock:
            now = self._clock()
            self._seconds[self._current] += now - self._since
            self._since = now
            return {(phase,): seconds for phase, seconds in self._seconds.items()}


@contextmanager
def serving_metrics(
    listen: str | None,
    tls: TlsFiles | None,
    events: Events,
    meters: Meters,
    instruments: Sequence[Instrument],
    readings: Callable[[], Readings],
) -> Iterator[str]:
    """Serve scrapes in other threads during the block, which gets the URL; the log has it, too.

    Without an address nothing is served.
    """
    if listen is None:
        yield ""
        return
    host, port = split_address(listen)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)

    def read() -> Readings:
        counts = {(kind.value, detail): float(n) for (kind, detail), n in events.counts().items()}
        expiry: dict[Labels, float] = {}
        # Files may be replaced at this moment; the next scrape sees the new ones.
        with suppress(ConfigError):
            end = None if tls is None else tls.expires_at()
            expiry = {} if end is None else {(): end.timestamp()}
        own: Readings = {
            EVENTS: dict.fromkeys(EVENTS.at_zero, 0.0) | counts,
            BUILD: {tuple(versions()[name] for name in ("lipt", "python", "torch")): 1.0},
            CERTIFICATE_EXPIRY: expiry,
        }
        return {**own, **readings()}

    class Scrape(Collector):
        def collect(self) -> Iterator[Any]:
            return _families(meters, (*EVERYWHERE, *instruments), read())

    registry.register(Scrape())
    try:
        server = _bound(host, port, make_wsgi_app(registry), tls)
    except OSError as error:
        raise ConfigError(
            f"--metrics-listen {listen}: {error.strerror or error}. Choose another address."
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    try:
        encrypted = tls is not None and tls.cert is not None
        url = f"{served_url(host, server.server_port, encrypted=encrypted)}/metrics"
        logger.info("metrics on %s (%s)", url, _what_a_scrape_needs(tls))
        yield url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _what_a_scrape_needs(tls: TlsFiles | None) -> str:
    if tls is None or tls.cert is None:
        return "unencrypted; needs no certificate and no token"
    if tls.ca is None:
        return "needs no certificate and no token; curl --cacert takes the server's authority"
    return f"needs a client certificate: curl --cacert {tls.ca} --cert FILE --key FILE"


def _families(
    meters: Meters, instruments: Sequence[Instrument], readings: Readings
) -> Iterator[Any]:
    for instrument in instruments:
        figures = readings.get(instrument, {})
        if not figures and (families := meters.families(instrument)):
            yield from families
            continue
        make = CounterMetricFamily if isinstance(instrument, Counter) else GaugeMetricFamily
        family = make(instrument.name, instrument.text, labels=instrument.labels)
        for labels, figure in figures.items():
            family.add_metric(labels, figure)
        yield family


def _bound(host: str, port: int, application: Callable[..., Any], tls: TlsFiles | None) -> _Server:
    # Omits the creation time of each series.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    context = server_context(tls, asks_peers=True)
    server: _Server = type("Server", (_Server,), {"address_family": family})((host, port), _Handler)
    server.set_app(application)
    if context is not None:
        # The handshake runs in the connection's thread, so that a silent peer blocks no other.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    return server


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        logger.debug(format, *args)


class _Server(ThreadingWSGIServer):
    """Serves a few scrapers at a time, each in a thread."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._room = threading.BoundedSemaphore(_MOST_SCRAPERS)

    def verify_request(self, *_: object) -> bool:
        """Whether there is a thread for one more connection."""
        return self._room.acquire(blocking=False)

    def process_request_thread(self, *given: Any) -> None:
        """Serve a connection until its end."""
        try:
            super().process_request_thread(*given)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        # A failed handshake or a closed scraper needs no warning.
        logger.debug("a connection of %s ends early: %s", client_address, sys.exception())
