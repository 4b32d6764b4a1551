"""Reconnection: how long a stream that broke, or was put off, is opened again, and how soon."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from lipt.common.backoff import Backoff
from lipt.common.errors import (
    ForkedError,
    QueueFullError,
    TooManyCallsError,
    UnreachableError,
)

MessageT = TypeVar("MessageT")

# What is asked again, after a pause.
INTERRUPTIONS = (UnreachableError, QueueFullError, TooManyCallsError)

_BACKOFF = Backoff(first_seconds=0.2, max_seconds=5.0)


class Reconnection:
    """Bounds the attempts at one stream, which begin anew with every message.

    A coordinator that never answered is not waited for, unless it is expected: its address
    is more likely to be wrong than its process to be restarting. One that has too much to do
    says when to ask again.
    """

    def __init__(
        self,
        limit_seconds: float,
        *,
        expected: bool = False,
        on_pause: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Allow for interruptions of so many seconds.

        Args:
            limit_seconds: the longest one.
            expected: whether the coordinator is surely there, or will be.
            on_pause: told in words why there is a pause, and how long it is.
            clock: seconds.
            sleep: waits so many seconds.
        """
        self._limit_seconds, self._on_pause = limit_seconds, on_pause
        self._clock, self._sleep = clock, sleep
        self._connected = expected
        self._num_failures, self._since = 0, 0.0

    def heard(self, messages: Iterable[MessageT]) -> Iterator[MessageT]:
        """`messages`, each of which ends an interruption."""
        for message in messages:
            self._connected = True
            self._num_failures = 0
            yield message

    def pause(self, error: UnreachableError | QueueFullError | TooManyCallsError) -> None:
        """Wait before the next attempt; not at all where this process has cut the stream.

        Raises:
            UnreachableError, QueueFullError, TooManyCallsError: `error` itself, when there is no
                point in another attempt.
        """
        if isinstance(error, ForkedError):
            return
        if not self._num_failures:
            self._since = self._clock()
        self._num_failures += 1
        answered = self._connected or not isinstance(error, UnreachableError)
        left = self._since + self._limit_seconds - self._clock()
        if not answered or left <= 0.0:
            raise error
        asked = error.retry_after_seconds or 0.0
        seconds = max(min(_BACKOFF.pause_seconds(self._num_failures), left), asked)
        self._on_pause(f"{error.problem}; asking again in {seconds:.1f} s")
        self._sleep(seconds)
