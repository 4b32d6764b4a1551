"""Metrics: instruments, meters, and what Prometheus reads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from lipt.common.errors import ConfigError
from lipt.common.network.tls import TlsFiles, split_address
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.serving import serving_http
from lipt.common.process.devices import versions

# Values of one label that are told apart: each is a series.
_MOST = 64
OTHER = "other"


@dataclass(frozen=True, eq=False)
class Instrument:
    """A metric's declaration; compared by identity.

    Attributes:
        most: values of each label that are told apart; further ones are called `OTHER`.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()
    most: int = _MOST

    @property
    def from_the_start(self) -> tuple[tuple[str, ...], ...]:
        """Of which series there is a figure before anything was counted."""
        return ()


@dataclass(frozen=True, eq=False)
class Counter(Instrument):
    """Grows from 0 since the process started.

    `at_zero` are label values that are shown before the first event.
    """

    at_zero: tuple[tuple[str, ...], ...] = ()

    @property
    def from_the_start(self) -> tuple[tuple[str, ...], ...]:
        """Of which series there is a figure before anything was counted."""
        return self.at_zero if self.labels else ((),)


@dataclass(frozen=True, eq=False)
class Gauge(Instrument):
    """A figure of this moment."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Histogram(Instrument):
    """How many observations there were up to each of `buckets`, and what they are together."""

    buckets: tuple[float, ...]

    @property
    def from_the_start(self) -> tuple[tuple[str, ...], ...]:
        """Of which series there is a figure before anything was observed."""
        return () if self.labels else ((),)


# Figures that are read as they stand, by label values.
Readings: TypeAlias = Mapping[Counter | Gauge, Mapping[tuple[str, ...], float]]

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


# Label values are bounded: whatever peers send, the number of series has an end.

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Distribution:
    """Observations in each bucket and above the last, not cumulative, and the sum of all values."""

    counts: tuple[int, ...]
    total: float


class _Buckets:
    def __init__(self, number: int) -> None:
        self.counts = [0] * number
        self.total = 0.0


class Meters:
    """The counters and histograms of one process; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[Counter | Gauge, dict[Labels, float]] = defaultdict(dict)
        self._distributions: dict[Histogram, dict[Labels, _Buckets]] = defaultdict(dict)
        # What was seen of each label, as far as it is told apart.
        self._seen: dict[tuple[Instrument, str], set[str]] = defaultdict(set)

    def add(self, counter: Counter | Gauge, *labels: str, by: float = 1.0) -> None:
        """Count `by` more."""
        with self._lock:
            series = self._sums[counter]
            if labels not in series:
                labels = self._bounded(counter, labels)
            series[labels] = series.get(labels, 0.0) + by

    def observe(self, histogram: Histogram, value: float, *labels: str) -> None:
        """Note one value."""
        with self._lock:
            series = self._distributions[histogram]
            if labels not in series:
                labels = self._bounded(histogram, labels)
            found = series.get(labels)
            if found is None:
                found = series[labels] = _Buckets(len(histogram.buckets) + 1)
            found.counts[bisect_left(histogram.buckets, value)] += 1
            found.total += value

    def sums(self, counter: Counter | Gauge) -> dict[Labels, float]:
        """What a counter, or a gauge that is counted, has come to, by its label values."""
        with self._lock:
            return dict.fromkeys(counter.from_the_start, 0.0) | self._sums.get(counter, {})

    def distributions(self, histogram: Histogram) -> dict[Labels, Distribution]:
        """What a histogram holds, by its label values."""
        with self._lock:
            nothing = _Buckets(len(histogram.buckets) + 1)
            series = dict.fromkeys(histogram.from_the_start, nothing)
            series |= self._distributions.get(histogram, {})
            return {
                labels: Distribution(tuple(found.counts), found.total)
                for labels, found in series.items()
            }

    def _bounded(self, instrument: Instrument, labels: Labels) -> Labels:
        if len(labels) != len(instrument.labels):
            raise ValueError(f"{instrument.name} has labels {instrument.labels}, not {labels}")
        return tuple(
            self._told_apart(instrument, name, value)
            for name, value in zip(instrument.labels, labels, strict=True)
        )

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
    """Answer scrapes from a thread of its own until the block ends."""
    host, port = split_address(listen)
    registry = CollectorRegistry()
    # Memory, processor time and open files of this process, under the names that all services use.
    ProcessCollector(registry=registry)

    def read() -> Readings:
        return {**_of_both(events, tls), **readings()}

    registry.register(_Collector(meters, (*EVERYWHERE, *instruments), read))
    application = make_wsgi_app(registry)
    with ExitStack() as stack:
        try:
            served = stack.enter_context(serving_http(host, port, application, tls))
        except OSError as error:
            raise ConfigError(
                f"--metrics-listen {listen}: {error.strerror or error}. Choose another address."
            ) from None
        yield f"[{host}]:{served}" if ":" in host else f"{host}:{served}"


def _of_both(events: Events, tls: TlsFiles | None) -> Readings:
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


class _Collector(Collector):
    def __init__(
        self,
        meters: Meters,
        instruments: Sequence[Instrument],
        read: Callable[[], Readings],
    ) -> None:
        self._meters = meters
        self._instruments = instruments
        self._read = read

    def collect(self) -> Iterator[Any]:
        readings = self._read()
        for instrument in self._instruments:
            match instrument:
                case Histogram():
                    yield self._histogram(instrument, self._meters.distributions(instrument))
                case Counter() | Gauge():
                    found = readings.get(instrument) or self._meters.sums(instrument)
                    yield self._family(instrument, found)

    def describe(self) -> tuple[Any, ...]:
        # Nothing else is registered, and registering must not scrape.
        return ()

    def _histogram(self, histogram: Histogram, found: dict[tuple[str, ...], Distribution]) -> Any:
        family = HistogramMetricFamily(histogram.name, histogram.text, labels=histogram.labels)
        bounds = [*(f"{float(bound)}" for bound in histogram.buckets), "+Inf"]
        for labels, distribution in found.items():
            numbers = accumulate(distribution.counts)
            buckets = list(zip(bounds, numbers, strict=True))
            family.add_metric(labels, buckets=buckets, sum_value=distribution.total)
        return family

    def _family(self, instrument: Counter | Gauge, found: Mapping[tuple[str, ...], float]) -> Any:
        make = CounterMetricFamily if isinstance(instrument, Counter) else GaugeMetricFamily
        family = make(instrument.name, instrument.text, labels=instrument.labels)
        for labels, figure in found.items():
            family.add_metric(labels, figure)
        return family
