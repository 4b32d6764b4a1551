"""Decoding threads: for many rows at once, or for prefetched batches."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

Progress = Callable[[int, int], None]
T = TypeVar("T")
PartT = TypeVar("PartT")
BatchT = TypeVar("BatchT")

# Below about 100 x 100 pixels, a second thread's contention for the interpreter costs more than it
# decodes. Images a second on two cores, with one and two threads: 11k and 8k at 32 x 32 pixels,
# 3.0k and 4.6k at 224 x 224.
_MIN_THREADED_PIXELS = 100 * 100
_MAX_THREADS = 8
# Futures in flight.
_WINDOW = 256
_BATCHES_AHEAD = 2
_REPORT_SECONDS = 0.2


def threads_for(num_pixels: int) -> int:
    if num_pixels < _MIN_THREADED_PIXELS:
        return 1
    return min(_MAX_THREADS, os.cpu_count() or 1)


def map_rows(
    function: Callable[[int], T],
    rows: Sequence[int],
    *,
    num_threads: int,
    progress: Progress | None = None,
) -> Iterator[T]:
    """Yield `function(row)` for every row, in order; raises the first error in order.

    One thread means the caller's. `progress` is called with (done, total) five times a second.
    """
    total = len(rows)
    last_report = time.monotonic()
    if progress is not None:
        progress(0, total)
    for done, result in enumerate(_results(function, rows, num_threads), start=1):
        yield result
        if progress is not None and time.monotonic() - last_report >= _REPORT_SECONDS:
            last_report = time.monotonic()
            progress(done, total)
    if progress is not None:
        progress(total, total)


def _results(function: Callable[[int], T], rows: Sequence[int], num_threads: int) -> Iterator[T]:
    if num_threads == 1:
        yield from map(function, rows)
        return
    remaining = iter(rows)
    with ThreadPoolExecutor(num_threads) as executor:
        while window := list(islice(remaining, _WINDOW)):
            # Leaving the iteration early cancels pending rows.
            yield from executor.map(function, window)


@contextmanager
def prefetched(
    read: Callable[[PartT], BatchT], parts: Iterable[PartT]
) -> Iterator[Iterator[BatchT]]:
    """`read(part)` for each part, in order, by one other thread, at most two batches ahead.

    An error of `read` is raised in place of its batch. Leaving the block early waits only for the
    current read.
    """

    def batches() -> Iterator[BatchT]:
        ahead: deque[Future[BatchT]] = deque()
        for part in parts:
            ahead.append(executor.submit(read, part))
            if len(ahead) > _BATCHES_AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    with ThreadPoolExecutor(1, thread_name_prefix="decode") as executor:
        try:
            yield batches()
        finally:
            executor.shutdown(wait=True, cancel_futures=True)
