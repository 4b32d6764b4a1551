"""Metrics: every instrument of both services, with its labels and what it counts."""

from __future__ import annotations

from docs.make.markdown import code, table
from lipt.common.observability.metrics import EVERYWHERE, Instrument
from lipt.coordinator.instruments import COORDINATOR
from lipt.worker.instruments import WORKER

_PARTS = (
    ("The coordinator", COORDINATOR),
    ("A worker", WORKER),
    ("Both", EVERYWHERE),
)


def metrics() -> str:
    """All metrics as Markdown."""
    return "\n".join(f"### {heading}\n\n{_listed(part)}" for heading, part in _PARTS)


def _listed(instruments: tuple[Instrument, ...]) -> str:
    return table(
        ("metric", "type", "labels", "what it is"),
        (
            (
                code(instrument.name),
                type(instrument).__name__.lower(),
                ", ".join(map(code, instrument.labels)),
                instrument.text,
            )
            for instrument in instruments
        ),
    )
