"""Following a run until it has ended or is held: a live table, plain lines, or JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing

from lipt.common.text import say
from lipt.trainer.cli.display.displays import Display, JsonDisplay, LineDisplay
from lipt.trainer.cli.display.waiting import in_background
from lipt.trainer.client.watching import while_going_on
from lipt.trainer.views import RunView


def make_display(*, as_json: bool) -> Display:
    """The display that suits standard output."""
    if as_json:
        return JsonDisplay()
    if sys.stdout.isatty():
        from lipt.trainer.cli.display.live import LiveDisplay

        return LiveDisplay()
    return LineDisplay(say, time.monotonic())


def follow(
    changes: Iterable[RunView], display: Display, *, check: Callable[[], None] | None = None
) -> RunView | None:
    """Show a run's changes until there are no more, or it does not go on by itself.

    Args:
        changes: `Client.watch(...)`; consumed in a thread, so that the display
            and Ctrl-C never wait for it.
        display: where to show them.
        check: called about twice a second; what it raises ends the following.

    Returns:
        The run as it was last, None if there was no change at all.
    """
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
    """What to say to somebody who no longer follows a run: it does not end with that."""
    return [
        f"run {run.label} goes on without you.",
        f"Follow it again with: lipt run watch {run.label}",
        f"End it with: lipt run cancel {run.label}",
    ]
