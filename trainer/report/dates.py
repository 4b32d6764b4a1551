"""Dates of a page: when its run began and ended, when it was made; in UTC, for pages travel."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from lipt.trainer.views import RunView


@dataclass(frozen=True)
class Date:
    """What happened when; `iso` is for machines."""

    what: str
    text: str
    iso: str


def dates_of(run: RunView, made_at: datetime | None) -> tuple[Date, ...]:
    """Those that are known, in the order of time."""
    found = (
        ("started", run.created_at),
        (str(run.state), run.ended_at),
        ("this page is of", made_at),
    )
    return tuple(_date(what, when) for what, when in found if when is not None)


def lasted(run: RunView) -> str:
    """How long the run took: "42 s", "3 min 5 s", "2 h 10 min"; empty where it has not ended."""
    if run.created_at is None or run.ended_at is None:
        return ""
    minutes, seconds = divmod(round((run.ended_at - run.created_at).total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _date(what: str, when: datetime) -> Date:
    there = when.astimezone(UTC)
    return Date(what, f"{there:%Y-%m-%d %H:%M} UTC", there.isoformat(timespec="seconds"))
