"""Following a run until it has ended or is held: a live table, plain lines, or JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing

from rich.console import Group, RenderableType
from rich.live import Live

from lipt.common.terminal import say
from lipt.trainer.cli.display.output import SILENCE_SECONDS, Say, in_background, print_json
from lipt.trainer.cli.display.progress import (
    LEARNER_COLUMNS,
    Pace,
    change_lines,
    heartbeat_line,
    learner_cells,
    learner_style,
    shown_learners,
    state_line,
)
from lipt.trainer.cli.display.screen import Screen, styled, table_of
from lipt.trainer.client.streams import while_going_on
from lipt.trainer.views import RunView

# Taller tables than the terminal would scroll instead of changing in place.
_SPARE_LINES = 6


class Display:
    """Where a run is shown: here as JSON, one object per change on a line.

    Times are seconds of one clock that never goes back.
    """

    def show(self, run: RunView, now: float) -> None:  # noqa: ARG002 - for other displays
        """Show a changed run."""
        print_json(run)

    def tick(self, now: float) -> None:
        """Called when some time has passed."""

    def close(self) -> None:
        """Called when the run has ended, or is no longer followed."""


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


class LiveDisplay(Display):
    """A live table of a run's learners below a line with its state."""

    def __init__(self, console: Screen | None = None) -> None:
        self._console = console or Screen()
        self._live = Live(styled("waiting for the coordinator"), console=self._console)
        self._live.start()
        self._pace = Pace()
        self._run: RunView | None = None

    def show(self, run: RunView, now: float) -> None:
        """Draw the run anew."""
        self._pace.observe(run, now)
        self._run = run
        self.tick(now)

    def tick(self, now: float) -> None:
        """Draw it with the time that is left."""
        run = self._run
        if run is None:
            return
        # What has ended is no longer drawn in place and may be of any length.
        room = len(run.learners) if run.ended else max(self._console.height - _SPARE_LINES, 5)
        self._live.update(render(run, room, left=self._pace.words(now)), refresh=True)

    def close(self) -> None:
        """Leave the last table on the screen and give the cursor back."""
        self._live.stop()


def render(run: RunView, room: int, *, left: str = "") -> Group:
    """The state's line with the time that is left, and a table of up to `room` learners."""
    lines: list[RenderableType] = [styled("; ".join(filter(None, (state_line(run), left))), "bold")]
    shown = shown_learners(run.learners, room)
    if shown:
        num_steps = run.config.learners.num_steps
        rows = ((learner_style(item), learner_cells(item, num_steps)) for item in shown)
        lines.append(table_of(LEARNER_COLUMNS, rows))
    if hidden := len(run.learners) - len(shown):
        lines.append(styled(f"and {hidden} more learners", "dim"))
    return Group(*lines)


def make_display(*, as_json: bool) -> Display:
    """The display that suits standard output."""
    if as_json:
        return Display()
    if sys.stdout.isatty():
        return LiveDisplay()
    return LineDisplay(say, time.monotonic())


def follow(
    changes: Iterable[RunView], display: Display, *, check: Callable[[], None] | None = None
) -> RunView | None:
    """Show a run's changes until there are no more, or it does not go on by itself."""
    latest: RunView | None = None
    with closing(display):
        for item in in_background(while_going_on(changes)):
            now = time.monotonic()
            if item is None:
                display.tick(now)
            else:
                latest = item
                display.show(item, now)
            if check is not None:
                check()
    return latest


def left_lines(run: RunView) -> list[str]:
    """What to say to somebody who no longer follows a run."""
    return [
        f"run {run.label} goes on without you.",
        f"Follow it again with: lipt run watch {run.label}",
        f"End it with: lipt run cancel {run.label}",
    ]
