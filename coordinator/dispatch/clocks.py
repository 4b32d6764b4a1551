"""Time that survives a restart, and does not jump when the machine's clock is set."""

from __future__ import annotations

from collections.abc import Callable


def steady_clock(
    wall_clock: Callable[[], float], monotonic: Callable[[], float]
) -> Callable[[], float]:
    """Seconds since 1970 as the wall clock has them now, and from here on as time passes.

    Deadlines are counted on it: they are written down, so a monotonic clock alone,
    which begins anew with the machine, would not do.
    """
    offset = wall_clock() - monotonic()
    return lambda: monotonic() + offset
