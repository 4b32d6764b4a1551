"""Talking: a line now and then from a process whose main thread is busy, as with long imports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SILENCE_SECONDS = 9.0


@contextmanager
def talking(
    activity: str, say: Callable[[str], object], *, silence_seconds: float = _SILENCE_SECONDS
) -> Iterator[None]:
    """Say what is done in the block, and for how long, whenever it has taken so long again.

    Args:
        activity: in words.
        say: takes a line, in another thread.
        silence_seconds: between two lines, and before the first.
    """
    done, began = threading.Event(), time.monotonic()

    def talk() -> None:
        while not done.wait(silence_seconds):
            say(f"{activity} (for {time.monotonic() - began:.0f} s now)")

    thread = threading.Thread(target=talk, name="lipt-talking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
