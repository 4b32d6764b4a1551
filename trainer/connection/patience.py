"""Retry of broken streams: how long they are opened again, and after which pauses."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from lipt.common.errors import ForkedError, LiptError

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0

MessageT = TypeVar("MessageT")


class Patience:
    """How often and how long a broken stream is tried again.

    A coordinator that never answered is not waited for: its address is more
    likely to be wrong than its process to be restarting.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._attempts = 0
        self._since: float | None = None
        self._connected = False

    def heard(self) -> None:
        """A message came: the next interruption starts with full patience."""
        self._connected = True
        self._attempts = 0
        self._since = None

    def hearing(self, messages: Iterable[MessageT]) -> Iterator[MessageT]:
        """The messages, with `heard` called for each."""
        for message in messages:
            self.heard()
            yield message

    def pause(self, error: LiptError) -> None:
        """Wait before the next attempt; not at all where this process has cut the stream.

        Raises:
            LiptError: `error` itself, when there is no point in another attempt.
        """
        if isinstance(error, ForkedError):
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not self._connected or now - self._since >= self._limit_seconds:
            raise error
        time.sleep(pause_seconds(self._attempts))
        self._attempts += 1


def pause_seconds(attempts: int) -> float:
    """The pause after so many failed attempts: doubling, up to some seconds."""
    return min(_FIRST_PAUSE_SECONDS * 2.0 ** min(attempts, 10), _LONGEST_PAUSE_SECONDS)
