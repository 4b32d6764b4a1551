"""Waiting for slow work: it runs in a thread, so that the main thread can say how it goes.

The main thread stays free for Ctrl-C, and a line appears at least every
`SILENCE_SECONDS` whatever the coordinator does.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from lipt.common.sizes import format_bytes
from lipt.common.text import say as say_line

SILENCE_SECONDS = 9.0
TICK_SECONDS = 0.5
# The name of the threads that do the work.
BACKGROUND = "lipt-background"

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

Say = Callable[[str], None]


def in_background(
    items: Iterable[ItemT], *, tick_seconds: float = TICK_SECONDS
) -> Iterator[ItemT | None]:
    """Consume items in a thread and yield them, or None whenever none came for a tick.

    What the items raise is raised here.
    """
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    errors: list[BaseException] = []
    end = object()

    def pump() -> None:
        try:
            for item in items:
                arrived.put(item)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            errors.append(error)
        arrived.put(end)

    # A daemon: Ctrl-C must not wait for a call that hangs.
    within = partial(copy_context().run, pump)
    threading.Thread(target=within, name=BACKGROUND, daemon=True).start()
    while True:
        try:
            item = arrived.get(timeout=tick_seconds)
        except queue.Empty:
            yield None
            continue
        if item is end:
            break
        yield item
    for error in errors:
        raise error


def run_talking(
    work: Callable[[Say], ResultT],
    say: Say = partial(say_line, err=True),
    *,
    silence_seconds: float = SILENCE_SECONDS,
) -> ResultT:
    """Do `work` and `say` how it goes, at least every `silence_seconds`.

    Args:
        work: is given a function to report what it is doing.
        say: prints a line; on standard error where nothing else is said.
        silence_seconds: the longest time without a line.

    Returns:
        What `work` returned; what it raised is raised.
    """
    reports: queue.SimpleQueue[str] = queue.SimpleQueue()
    results: list[ResultT] = []

    def items() -> Iterator[None]:
        results.append(work(reports.put))
        yield from ()

    latest, started, said = "working", time.monotonic(), time.monotonic()
    tick = min(TICK_SECONDS, silence_seconds)
    for _ in in_background(items(), tick_seconds=tick):
        while not reports.empty():
            latest = reports.get()
        now = time.monotonic()
        if now - said >= silence_seconds:
            say(f"{latest} ({now - started:.0f} s)")
            said = now
    return results[0]


def run_counting(activity: str, move: Callable[[Callable[[int], None]], ResultT]) -> ResultT:
    """As `run_talking`, for what moves bytes: says how many have moved.

    Args:
        activity: what is being moved, for the lines.
        move: is given a function to tell of bytes as they move.
    """

    def work(report: Say) -> ResultT:
        total = 0

        def on_bytes(count: int) -> None:
            nonlocal total
            total += count
            report(f"{activity}: {format_bytes(total)}")

        return move(on_bytes)

    return run_talking(work)
