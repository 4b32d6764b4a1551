"""Dates of a page: when its run began and ended, when it was made; in UTC, for pages travel."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lipt.trainer.views import RunView


@dataclass(frozen=True)
class Date:
    """What happened when.

    iso: for machines.
    after: how long it took; empty where that says nothing.
    """

    what: str
    text: str
    iso: str
    after: str = ""


def dates_of(run: RunView, made_at: datetime | None) -> tuple[Date, ...]:
    """Those that are known, in the order of time."""
    began, ended = run.created_at, run.ended_at
    after = "" if began is None or ended is None else f" after {duration(ended - began)}"
    found = (
        ("started", began, ""),
        (str(run.state), ended, after),
        ("this page was made", made_at, ""),
    )
    return tuple(
        Date(what, _text(when), when.astimezone(UTC).isoformat(timespec="seconds"), after)
        for what, when, after in found
        if when is not None
    )


def duration(length: timedelta) -> str:
    """A time in two units at most: "42 s", "3 min 5 s", "2 h 10 min"."""
    minutes, seconds = divmod(round(length.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _text(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
