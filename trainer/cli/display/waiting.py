"""Waits for slow work without going silent: the work runs in a thread, the main thread talks.

The main thread stays free for Ctrl-C, and a line appears at least every
`SILENCE_SECONDS` whatever the coordinator does.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import typer

SILENCE_SECONDS = 9.0
TICK_SECONDS = 0.5

ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class Quiet:
    """Nothing came during one tick."""


@dataclass(frozen=True)
class _End:
    error: BaseException | None


class Background(Generic[ItemT]):
    """Runs an iterable in a thread and yields its items, or `Quiet` while none comes.

    Args:
        items: consumed in the thread; its exception is raised in `__iter__`.
        tick_seconds: the longest wait between two items of `__iter__`.
    """

    def __init__(self, items: Iterable[ItemT], *, tick_seconds: float = TICK_SECONDS) -> None:
        self._items = items
        self._tick_seconds = tick_seconds
        self._queue: queue.SimpleQueue[ItemT | _End] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[ItemT | Quiet]:
        # A daemon: Ctrl-C must not wait for a call that hangs.
        threading.Thread(target=self._pump, name="lipt-background", daemon=True).start()
        while True:
            try:
                item = self._queue.get(timeout=self._tick_seconds)
            except queue.Empty:
                yield Quiet()
                continue
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item

    def _pump(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                self._queue.put(item)
        except BaseException as raised:  # noqa: BLE001 - raised again in the main thread
            error = raised
        self._queue.put(_End(error))


ResultT = TypeVar("ResultT")


def run_talking(
    work: Callable[[Callable[[str], None]], ResultT],
    say: Callable[[str], None] = partial(typer.echo, err=True),
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
    for _ in Background(items(), tick_seconds=tick):
        while not reports.empty():
            latest = reports.get()
        now = time.monotonic()
        if now - said >= silence_seconds:
            say(f"{latest} ({now - started:.0f} s)")
            said = now
    return results[0]
