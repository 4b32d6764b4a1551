"""Backoff: growing pauses between attempts, and the retry loop."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from lipt.common.errors import LiptError

ResultT = TypeVar("ResultT")

_WARN_EVERY_SECONDS = 60.0


@dataclass(frozen=True)
class Backoff:
    """Pauses that double up to a maximum; `jitter` draws the share of a pause's second half."""

    first_seconds: float
    max_seconds: float
    jitter: Callable[[], float] = field(default=lambda: 1.0)

    def pause_seconds(self, num_failures: int) -> float:
        doubled = self.first_seconds * 2.0 ** min(num_failures - 1, 60)
        return min(self.max_seconds, doubled) * (1 + self.jitter()) / 2


@dataclass(frozen=True)
class RetryPolicy(Backoff):
    """A limit on consecutive failures without progress, with pauses between them."""

    first_seconds: float = 0.2
    max_seconds: float = 10.0
    jitter: Callable[[], float] = field(default=random.random)
    max_failures: int = 10
    sleep: Callable[[float], object] = field(default=time.sleep)
    on_retry: Callable[[LiptError], object] = field(default=lambda _: None)


class RetryLevels:
    """Log levels of retries: a warning for a new kind of error, then one a minute, else debug."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._warned_at: dict[type[LiptError], float] = {}

    def level(self, error: LiptError) -> int:
        with self._lock:
            now, kind = self._clock(), type(error)
            if now - self._warned_at.get(kind, -math.inf) < _WARN_EVERY_SECONDS:
                return logging.DEBUG
            self._warned_at[kind] = now
            return logging.WARNING

    def recover(self) -> bool:
        """Start anew after a success; whether there was a warning since the last one."""
        with self._lock:
            warned, self._warned_at = bool(self._warned_at), {}
            return warned


def retry(
    attempt: Callable[[], ResultT],
    *,
    on: tuple[type[LiptError], ...],
    policy: RetryPolicy,
    progress: Callable[[], int] = lambda: 0,
) -> ResultT:
    """Call `attempt` until it succeeds, or fails by an error outside `on`.

    An error may request a longer pause. More `progress` than before resets the count of failures.
    """
    num_failures, furthest = 0, progress()
    while True:
        try:
            return attempt()
        except on as error:
            reached = progress()
            num_failures = 1 if reached > furthest else num_failures + 1
            furthest = max(furthest, reached)
            if num_failures >= policy.max_failures:
                raise
            policy.on_retry(error)
            policy.sleep(max(policy.pause_seconds(num_failures), error.retry_after_seconds or 0.0))
