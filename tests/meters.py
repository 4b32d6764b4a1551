"""What a process's meters have come to, by label values, as Prometheus would be told."""

from lipt.common.observability.metrics import Histogram, Instrument, Meters


def sums(meters: Meters, instrument: Instrument) -> dict[tuple[str, ...], float]:
    return _samples(meters, instrument, instrument.name)


def observed(meters: Meters, histogram: Histogram) -> dict[tuple[str, ...], tuple[float, float]]:
    counts = _samples(meters, histogram, f"{histogram.name}_count")
    totals = _samples(meters, histogram, f"{histogram.name}_sum")
    return {labels: (count, totals[labels]) for labels, count in counts.items()}


def _samples(meters: Meters, instrument: Instrument, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels[label] for label in instrument.labels): sample.value
        for family in meters.families(instrument)
        for sample in family.samples
        if sample.name == name
    }
