"""Starting: what a coordinator says of itself until it serves; it is never silent for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic

from lipt.coordinator.compute.progress import OnProgress, Progressed

# Where a job tells how far it is, so often; where it tells nothing, so long at most.
_REPORT_EVERY_SECONDS = 5.0
_SILENCE_SECONDS = 9.0
_TICK_SECONDS = 0.5


@asynccontextmanager
async def saying(
    activity: str,
    say: Callable[[str], object],
    *,
    silence_seconds: float = _SILENCE_SECONDS,
    tick_seconds: float = _TICK_SECONDS,
    clock: Callable[[], float] = monotonic,
) -> AsyncIterator[OnProgress]:
    """Say what goes on in the block, as it is reported to what this yields, and in between.

    Args:
        activity: what is done until something is reported.
        say: takes a line.
        silence_seconds: after so long without a line there is one.
        tick_seconds: how often that is looked at.
        clock: seconds.
    """
    began = said = clock()
    latest = activity

    def tell(line: str) -> None:
        nonlocal said
        said = clock()
        say(line)

    def report(now: Progressed) -> None:
        nonlocal latest
        # Before a job has begun, it says nothing of what it will do.
        latest = f"{now.activity}: {now.done} of {now.total}" if now.total else activity
        if clock() - said >= _REPORT_EVERY_SECONDS:
            tell(latest)

    async def break_silence() -> None:
        while True:
            await asyncio.sleep(tick_seconds)
            if clock() - said >= silence_seconds:
                tell(f"{latest} (for {clock() - began:.0f} s now)")

    task = asyncio.create_task(break_silence())
    try:
        yield report
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
