"""Threads that decode: many rows at once, or the next batches ahead of the consumer."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from typing import TypeVar

Progress = Callable[[int, int], None]
T = TypeVar("T")
PartT = TypeVar("PartT")
BatchT = TypeVar("BatchT")

# Measured on two cores: below about 100 x 100 pixels a second thread costs more in contention for
# the interpreter than it decodes (32x32: 8k against 11k images a second; 224x224: 4.6k, 3.0k).
_MIN_THREADED_PIXELS = 100 * 100
_MAX_THREADS = 8
# Futures in flight: enough to keep the threads busy, few enough to cost no memory.
_WINDOW = 256
_BATCHES_AHEAD = 2
_REPORT_SECONDS = 0.2


def threads_for(num_pixels: int) -> int:
    """How many threads to decode images of about `num_pixels` with."""
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
    """Yield `function(row)` for every row, in order.

    Args:
        function: called from several threads if `num_threads` is over 1.
        rows: its arguments.
        num_threads: 1 stays in the caller's thread.
        progress: called with (done, total) at the start, about five times a second as rows
            finish, and at the end.

    Raises:
        Exception: that of `function` for the first row, in order, that fails.
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
            # Leaving the iteration early cancels what has not started.
            yield from executor.map(function, window)


@contextmanager
def reading_ahead(
    read: Callable[[PartT], BatchT], parts: Iterable[PartT]
) -> Iterator[Iterator[BatchT]]:
    """`read(part)` for each part, in order, read in a thread while the present one is used.

    Args:
        read: called in one other thread, for one part after the other.
        parts: its arguments; iterated in the caller's thread.

    Yields:
        The batches. Asking for one raises the error of `read` for it, after those before it; at
        most two more lie ready or are being read. Leaving the block early waits for the batch
        that is being read, and no other is begun.
    """
    with (
        ThreadPoolExecutor(1, thread_name_prefix="decode") as executor,
        closing(_batches(executor, read, parts)) as batches,
    ):
        yield batches


def _batches(
    executor: ThreadPoolExecutor, read: Callable[[PartT], BatchT], parts: Iterable[PartT]
) -> Generator[BatchT, None, None]:
    ahead: deque[Future[BatchT]] = deque()
    try:
        for part in parts:
            ahead.append(executor.submit(read, part))
            if len(ahead) > _BATCHES_AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        for future in ahead:
            future.cancel()
