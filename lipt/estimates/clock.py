"""Clock: seconds of a piece of work, with nothing else to do on the machine and as it is now.

What a process computed tells the first, what passed meanwhile the second: where others use the
same cores the second is longer, and a run that begins now will come to something between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter, process_time

from lipt.estimates.work import Range

# What one task is measured for, about.
SECONDS = 1.0
_MOST_REPETITIONS = 5


class Stopwatch:
    """Begins when it is made."""

    def __init__(self) -> None:
        self._passed, self._computed = perf_counter(), process_time()

    def seconds(self, threads: int = 1) -> Range:
        """What has passed since, of work that so many threads share."""
        passed, computed = perf_counter() - self._passed, process_time() - self._computed
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else threads
        return Range(min(passed, computed / min(threads, cores)), passed)


def seconds_of(work: Callable[[], object], threads: int = 1) -> Range:
    """What it takes, once."""
    watch = Stopwatch()
    work()
    return watch.seconds(threads)


def usual_seconds(work: Callable[[], object], threads: int = 1) -> Range:
    """What it takes after the first time, in which libraries choose their kernels: the median."""
    work()
    times = list(_repeated(work, threads))
    return Range(median(one.low for one in times), median(one.high for one in times))


def _repeated(work: Callable[[], object], threads: int) -> Iterator[Range]:
    spent = 0.0
    for _ in range(_MOST_REPETITIONS):
        taken = seconds_of(work, threads)
        yield taken
        spent += taken.high
        if spent > SECONDS:
            return
