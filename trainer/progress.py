"""Progress: one line that moves in a notebook or terminal, else a line every ten seconds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from time import monotonic
from typing import Any

from lipt.common.terminal import print_line
from lipt.common.text import printable
from lipt.trainer.views import ProgressView

Show = Callable[[ProgressView], None]

_SILENCE_SECONDS = 10.0
_THOUSAND = 1_000


@dataclass(frozen=True)
class CallProgress(ProgressView):
    """Progress of an activity, and the share of the whole call that is done.

    `jumps` counts the jumps of the share, by parts that proved unneeded.
    """

    share: float = 0.0
    jumps: int = 0

    @property
    def whole(self) -> ProgressView:
        """Progress of the whole call, in thousandths."""
        return ProgressView("", round(_THOUSAND * self.share), _THOUSAND)

    def __str__(self) -> str:
        return f"{self.share:.0%}, {super().__str__()}"


class RemainingTime:
    """Estimate of a stage's remaining time, at its mean speed up to the last progress.

    The estimate changes with progress alone. Without any it counts down, and is hidden at zero.
    """

    def __init__(self) -> None:
        self._stage: tuple[object, ...] = ()
        self._began = self._moved_at = 0.0
        self._first = self._done = self._total = 0

    def observe(self, stage: object, progress: ProgressView, now: float) -> None:
        """Record progress; another stage, activity or total starts a new estimate."""
        stage = (stage, progress.activity, progress.total)
        if stage != self._stage or progress.done < self._done:
            self._stage, self._began, self._first = stage, now, progress.done
        elif progress.done == self._done:
            return
        self._moved_at, self._done, self._total = now, progress.done, progress.total

    def rate(self) -> str:
        """Such as "1,240/s"; empty before the stage has moved."""
        took, moved = self._moved_at - self._began, self._done - self._first
        return f"{moved / took:,.0f}/s" if took >= 1 and moved >= took else ""

    def text(self, now: float) -> str:
        """Such as "about 7 min left"; empty before the stage has moved, and at its end."""
        took, moved = self._moved_at - self._began, self._done - self._first
        if moved <= 0 or took < 1 or self._done >= self._total:
            return ""
        left = took * (self._total - self._done) / moved - (now - self._moved_at)
        return f"about {rounded_duration(left)} left" if left > 0 else ""


def rounded_duration(seconds: float) -> str:
    """A rounded duration: 47 s is "50 s", 400 s is "7 min"."""
    if seconds < 90:
        return f"{max(10 * round(seconds / 10), 10)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes <= 90 else f"{minutes / 60:.1f} h"


@contextmanager
def progress_display(*, shown: bool | None) -> Iterator[Show]:
    """Show progress during the block; `shown` False shows nothing, True lines at once."""
    shell = sys.modules.get("IPython")
    cell = shell.get_ipython() if shell is not None else None
    if shown is False:
        yield lambda _: None
    elif hasattr(cell, "kernel"):
        yield from _in_notebook()
    elif sys.stderr.isatty():
        yield from _on_terminal()
    else:
        yield _in_lines(0.0 if shown else _SILENCE_SECONDS)


def as_html(progress: ProgressView, text: str) -> str:
    """Format a bar and its text."""
    share = f" value='{progress.done}' max='{progress.total}'" if progress.total else ""
    return f"<progress{share}></progress> {escape(text)}"


def _with_remaining_time(show_text: Callable[[ProgressView, str], object]) -> Show:
    remaining, activity = RemainingTime(), RemainingTime()

    def show(progress: ProgressView) -> None:
        now, whole, stage, rate = monotonic(), progress, 0, ""
        if isinstance(progress, CallProgress):
            activity.observe("", progress, now)
            whole, stage, rate = progress.whole, progress.jumps, activity.rate()
        remaining.observe(stage, whole, now)
        show_text(whole, ", ".join(filter(None, (str(progress), rate, remaining.text(now)))))

    return show


def _in_notebook() -> Iterator[Show]:
    ipython: Any = importlib.import_module("IPython.display")
    html = ipython.HTML
    display = ipython.display(html("<progress></progress>"), display_id=True)
    try:
        yield _with_remaining_time(
            lambda progress, text: display.update(html(as_html(progress, text)))
        )
    finally:
        display.update(html(""))


def _on_terminal() -> Iterator[Show]:
    from rich.console import Console  # noqa: PLC0415, TID251 - for text without markup
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415 - takes 40 ms

    columns = BarColumn(), TextColumn("{task.fields[text]}", markup=False)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, text="starting")

        def update(progress: ProgressView, text: str) -> None:
            total = progress.total or None
            bar.update(task, completed=progress.done, total=total, text=printable(text))

        yield _with_remaining_time(update)


def _in_lines(silence_seconds: float) -> Show:
    printed_at = monotonic()

    def print_text(_: ProgressView, text: str) -> None:
        nonlocal printed_at
        if monotonic() - printed_at >= silence_seconds:
            printed_at = monotonic()
            print_line(f"lipt: {text}", err=True)

    return _with_remaining_time(print_text)
