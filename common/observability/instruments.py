"""Instruments: what a process measures, declared once, with the name that Prometheus shows.

Names and units follow Prometheus' conventions: base units (seconds, bytes, ratios), `_total` at
the end of a counter. A process declares all of its own in one file, `instruments.py` of its
package, and what is measured where is a matter of `lipt.common.observability.meters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lipt.common.observability.events import EventKind

# How many values of one label are told apart, unless an instrument says otherwise: each of them is
# a series of its own wherever the figures are kept.
_MOST = 64
OTHER = "other"


@dataclass(frozen=True, eq=False)
class Instrument:
    """What all of them have; one is the same as itself alone, which is quick to tell.

    Attributes:
        name: as it is shown.
        text: what it counts, for people.
        labels: what its series are told apart by.
        most: how many values of each label; what comes after them is called `OTHER`.
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

    at_zero: label values of the series that are there from the start. What begins with its first
        event has not grown by it, as Prometheus sees it.
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
