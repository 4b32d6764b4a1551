"""Meters: what the instruments of one process have counted, written where things happen.

Plain numbers under one lock, so that recording costs a few microseconds in any thread, and works
where nobody ever asks and Prometheus' library is not installed. Label values are bounded: whatever
peers send, the number of series has an end.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from lipt.common.observability.instruments import (
    OTHER,
    Counter,
    Gauge,
    Histogram,
    Instrument,
)

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Distribution:
    """What a histogram holds.

    counts: of observations in each bucket, and above the last; not summed up.
    total: of all observed values.
    """

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
        """Count `by` more.

        Args:
            counter: which; a gauge is counted up and down.
            labels: a value for each of its labels.
            by: how much; of a counter not negative.
        """
        with self._lock:
            series = self._sums[counter]
            if labels not in series:
                labels = self._bounded(counter, labels)
            series[labels] = series.get(labels, 0.0) + by

    def observe(self, histogram: Histogram, value: float, *labels: str) -> None:
        """Note one value.

        Args:
            histogram: which.
            value: in the unit that its name ends in.
            labels: a value for each of its labels.
        """
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
        """Begin with the first of `phases`."""
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
