"""Reconnection: how long a stream that broke is opened again, and after which pauses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from lipt.common.backoff import Backoff
from lipt.common.errors import ForkedError, UnreachableError

MessageT = TypeVar("MessageT")

_BACKOFF = Backoff(first_seconds=0.2, max_seconds=5.0)


class Reconnection:
    """Bounds the attempts at one stream, which begin anew with every message.

    A coordinator that never answered is not waited for: its address is more
    likely to be wrong than its process to be restarting.
    """

    def __init__(
        self,
        limit_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._limit_seconds = limit_seconds
        self._clock, self._sleep = clock, sleep
        self._connected = False
        self._num_failures, self._since = 0, 0.0

    def heard(self, messages: Iterable[MessageT]) -> Iterator[MessageT]:
        """`messages`, each of which ends an interruption."""
        for message in messages:
            self._connected = True
            self._num_failures = 0
            yield message

    def pause(self, error: UnreachableError) -> None:
        """Wait before the next attempt; not at all where this process has cut the stream.

        Raises:
            UnreachableError: `error` itself, when there is no point in another attempt.
        """
        if isinstance(error, ForkedError):
            return
        if not self._num_failures:
            self._since = self._clock()
        self._num_failures += 1
        if not self._connected or self._clock() - self._since >= self._limit_seconds:
            raise error
        self._sleep(_BACKOFF.pause_seconds(self._num_failures))
