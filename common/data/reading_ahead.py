"""Reading ahead: a thread reads and decodes the next batches while the present one is worked on.

Kernels and decoders let go of the interpreter, so that the two share a machine's cores and
neither waits for the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TypeVar

PartT = TypeVar("PartT")
BatchT = TypeVar("BatchT")

_BATCHES_AHEAD = 2


@contextmanager
def reading_ahead(
    read: Callable[[PartT], BatchT], parts: Iterable[PartT]
) -> Iterator[Iterator[BatchT]]:
    """What `read` gives for each part, in order; a context, so that its thread ends with it.

    Args:
        read: called in one other thread, for one part after the other.
        parts: what it is called with; iterated in the caller's thread.

    Yields:
        The batches. Asking for one raises what `read` raised for it, after those before it; at
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
