"""Displays of a run: as plain lines or as JSON; the live table has a module of its own.

They get the time as an argument: what they say when is decided without a
clock, so tests need none.
"""

from __future__ import annotations

from lipt.trainer.cli.display.output import print_json
from lipt.trainer.cli.display.pace import Pace
from lipt.trainer.cli.display.progress import change_lines, heartbeat_line
from lipt.trainer.cli.display.waiting import SILENCE_SECONDS, Say
from lipt.trainer.views import RunView


class Display:
    """Where a run is shown; times are seconds of one clock that never goes back."""

    def show(self, run: RunView, now: float) -> None:
        """The run has changed."""
        raise NotImplementedError

    def tick(self, now: float) -> None:
        """Some time has passed, of which most displays say nothing."""

    def close(self) -> None:
        """The run has ended, or is no longer followed."""


class JsonDisplay(Display):
    """One JSON object per change: the whole run, on one line."""

    def show(self, run: RunView, now: float) -> None:  # noqa: ARG002 - as the others
        """Print the run."""
        print_json(run)


class LineDisplay(Display):
    """A line per state change and per learner, and one at least every ten seconds."""

    def __init__(self, say: Say, now: float) -> None:
        self._say = say
        self._run: RunView | None = None
        self._changed_at = now
        self._said_at = now
        self._pace = Pace()

    def show(self, run: RunView, now: float) -> None:
        """Say what changed; a learner's next step alone is not worth a line."""
        self._pace.observe(run, now)
        lines = change_lines(self._run, run)
        self._run = run
        self._changed_at = now
        for line in lines:
            self._say(line)
            self._said_at = now
        self.tick(now)

    def tick(self, now: float) -> None:
        """Say that the run goes on, when nothing was said for too long."""
        if now - self._said_at >= SILENCE_SECONDS:
            line = heartbeat_line(self._run, now - self._changed_at)
            self._say("; ".join(filter(None, (line, self._pace.words(now)))))
            self._said_at = now
