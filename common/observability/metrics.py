"""Metrics: what a service declares and measures, and where Prometheus reads it."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from socketserver import ThreadingMixIn
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from lipt.common.errors import ConfigError
from lipt.common.network.tls import TlsFiles, server_context, split_address
from lipt.common.observability.logs import EventKind, Events
from lipt.common.process.devices import versions

logger = logging.getLogger(__name__)

# Values of one label that are told apart: each is a series. So whatever peers send, the number of
# series has an end.
_MOST = 64
OTHER = "other"
# A peer that says nothing for so long is not waited for.
_SILENCE_SECONDS = 30.0

Labels: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Instrument:
    """A metric's declaration; of each label `most` values are told apart, others are `OTHER`."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    most: int = _MOST


@dataclass(frozen=True, eq=False)
class Counter(Instrument):
    """Grows from 0; the label values `at_zero` are shown before the first event."""

    at_zero: tuple[Labels, ...] = ()


@dataclass(frozen=True, eq=False)
class Gauge(Instrument):
    """A figure of this moment."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Histogram(Instrument):
    """How many observations there were up to each of `buckets`, and what they are together."""

    buckets: tuple[float, ...]


# Figures that are read as they stand, by label values.
Readings: TypeAlias = Mapping[Counter | Gauge, Mapping[Labels, float]]

# What both services show; which one answered a scrape is the scraper's label.
EVENTS = Counter(
    "lipt_events_total",
    "What happened since the process started, by kind and detail.",
    ("event", "detail"),
    at_zero=tuple((kind.value, detail) for kind in EventKind for detail in kind.known_details),
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


class Distribution(NamedTuple):
    """Observations in each bucket and above the last, not cumulative, and the sum of all values."""

    counts: tuple[int, ...]
    total: float


class Meters:
    """The counters and histograms of one process, as Prometheus's; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[Instrument, Any] = {}
        # What was seen of each label, as far as it is told apart.
        self._seen: dict[tuple[Instrument, str], set[str]] = defaultdict(set)

    def add(self, counter: Counter | Gauge, *labels: str, by: float = 1.0) -> None:
        """Count `by` more."""
        self._series(counter, labels).inc(by)

    def observe(self, histogram: Histogram, value: float, *labels: str) -> None:
        """Note one value."""
        self._series(histogram, labels).observe(value)

    def sums(self, counter: Counter | Gauge) -> dict[Labels, float]:
        """What a counter, or a gauge that is counted, has come to, by its label values."""
        return {
            tuple(sample.labels[name] for name in counter.labels): sample.value
            for family in self.families(counter)
            for sample in family.samples
            if sample.name == counter.name
        }

    def distributions(self, histogram: Histogram) -> dict[Labels, Distribution]:
        """What a histogram holds, by its label values."""
        counts: dict[Labels, list[float]] = defaultdict(lambda: [0.0])
        sums: dict[Labels, float] = {}
        for family in self.families(histogram):
            for sample in family.samples:
                labels = tuple(sample.labels[name] for name in histogram.labels)
                if sample.name.endswith("_bucket"):
                    counts[labels].append(sample.value)
                elif sample.name.endswith("_sum"):
                    sums[labels] = sample.value
        return {
            labels: Distribution(tuple(int(to - up) for up, to in pairwise(counts[labels])), total)
            for labels, total in sums.items()
        }

    def families(self, instrument: Instrument) -> list[Any]:
        """What Prometheus is shown of an instrument; nothing of a gauge that nobody has counted."""
        with self._lock:
            if isinstance(instrument, Gauge) and instrument not in self._made:
                return []
            metric = self._metric(instrument)
        return list(metric.collect())

    def _series(self, instrument: Instrument, labels: Labels) -> Any:
        with self._lock:
            metric = self._metric(instrument)
            if not labels and not instrument.labels:
                return metric
            if len(labels) != len(instrument.labels):
                raise ValueError(f"{instrument.name} has labels {instrument.labels}, not {labels}")
            return metric.labels(
                *(
                    self._told_apart(instrument, name, value)
                    for name, value in zip(instrument.labels, labels, strict=True)
                )
            )

    def _metric(self, instrument: Instrument) -> Any:
        if instrument not in self._made:
            options = {"buckets": instrument.buckets} if isinstance(instrument, Histogram) else {}
            make: Any = getattr(prometheus_client, type(instrument).__name__)
            metric = make(
                instrument.name, instrument.text, instrument.labels, registry=None, **options
            )
            for labels in instrument.at_zero if isinstance(instrument, Counter) else ():
                metric.labels(*labels)
            self._made[instrument] = metric
        return self._made[instrument]

    def _told_apart(self, instrument: Instrument, label: str, value: str) -> str:
        seen = self._seen[instrument, label]
        if value not in seen and value != OTHER:
            if len(seen) >= instrument.most:
                return OTHER
            seen.add(value)
        return value


class Phases:
    """What one thing does now, and how long it has done each; safe to read from any thread.

    What is under way counts already: an hour of training shows while it lasts, and not at its end.
    """

    def __init__(self, *phases: str, clock: Callable[[], float] = perf_counter) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._seconds = dict.fromkeys(phases, 0.0)
        self._present, self._since = phases[0], clock()

    def enter(self, phase: str) -> None:
        """From now on it does this."""
        with self._lock:
            self._count()
            self._present = phase

    def seconds(self) -> dict[Labels, float]:
        """How long each has lasted."""
        with self._lock:
            self._count()
            return {(phase,): seconds for phase, seconds in self._seconds.items()}

    def _count(self) -> None:
        now = self._clock()
        self._seconds[self._present] += now - self._since
        self._since = now


@contextmanager
def serving_metrics(
    listen: str,
    tls: TlsFiles | None,
    events: Events,
    meters: Meters,
    instruments: Sequence[Instrument],
    readings: Callable[[], Readings],
) -> Iterator[str]:
    """Answer scrapes from threads of its own until the block ends; gives the address."""
    host, port = split_address(listen)
    registry = CollectorRegistry()
    # Memory, processor time and open files of this process, under the names that all services use.
    ProcessCollector(registry=registry)

    def read() -> Readings:
        return {**_of_both(events, tls), **readings()}

    registry.register(_Collector(meters, (*EVERYWHERE, *instruments), read))
    with ExitStack() as stack:
        try:
            served = stack.enter_context(_serving(host, port, make_wsgi_app(registry), tls))
        except OSError as error:
            raise ConfigError(
                f"--metrics-listen {listen}: {error.strerror or error}. Choose another address."
            ) from None
        yield f"[{host}]:{served}" if ":" in host else f"{host}:{served}"


def _of_both(events: Events, tls: TlsFiles | None) -> Readings:
    counts = {(kind.value, detail): float(n) for (kind, detail), n in events.counts().items()}
    expiry: dict[Labels, float] = {}
    if tls is not None:
        with suppress(ConfigError):  # replaced at this moment; the next scrape sees the new one
            end = tls.expires_at()
            expiry = {} if end is None else {(): end.timestamp()}
    running = versions()
    return {
        EVENTS: dict.fromkeys(EVENTS.at_zero, 0.0) | counts,
        BUILD: {(running["lipt"], running["python"], running["torch"]): 1.0},
        CERTIFICATE_EXPIRY: expiry,
    }


class _Collector(Collector):
    def __init__(
        self, meters: Meters, instruments: Sequence[Instrument], read: Callable[[], Readings]
    ) -> None:
        self._meters = meters
        self._instruments = instruments
        self._read = read

    def collect(self) -> Iterator[Any]:
        readings = self._read()
        for instrument in self._instruments:
            figures = readings.get(instrument) if isinstance(instrument, Counter | Gauge) else None
            if not figures and (families := self._meters.families(instrument)):
                yield from families
                continue
            make = CounterMetricFamily if isinstance(instrument, Counter) else GaugeMetricFamily
            family = make(instrument.name, instrument.text, labels=instrument.labels)
            for labels, figure in (figures or {}).items():
                family.add_metric(labels, figure)
            yield family

    def describe(self) -> tuple[Any, ...]:
        # Nothing else is registered, and registering must not scrape.
        return ()


@contextmanager
def _serving(
    host: str, port: int, application: Callable[..., Any], tls: TlsFiles | None
) -> Iterator[int]:
    # Of each series Prometheus would be told when it was made.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    context = server_context(tls, asks_peers=True)
    server = type("Server", (_Server,), {"address_family": family})((host, port), _Handler)
    server.set_app(application)
    if context is not None:
        # The handshake is made in a connection's own thread, so that a silent peer blocks nobody.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        logger.debug(format, *args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        # A stranger's handshake, or a scraper that leaves: a matter of theirs.
        logger.debug("a connection of %s ends early: %s", client_address, sys.exception())
