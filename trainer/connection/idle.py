"""Idle limit: ends a stream that has gone quiet, which a deadline cannot tell from a long one.

A run is watched for hours, so a deadline cannot tell a long stream from a
coordinator that hangs; the time since its last message can.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol, Self


class Cancellable(Protocol):
    """A call in flight."""

    def cancel(self) -> object:
        """End it; whoever waits for its next message is woken with an error."""
        ...


class IdleLimit:
    """Cancels a call when one wait for its next message takes too long.

    Only the time between `waiting()` and `heard()` counts: a consumer may take
    as long as it likes with a message.
    """

    def __init__(self, call: Cancellable, seconds: float) -> None:
        self._call = call
        self._seconds = seconds
        self._changed = threading.Condition()
        self._deadline: float | None = None
        self._over = False
        self._thread = threading.Thread(target=self._watch, name="lipt-idle", daemon=True)
        self.expired = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()

    def waiting(self) -> None:
        """Begin to wait for the next message."""
        self._set(time.monotonic() + self._seconds)

    def heard(self) -> None:
        """End the wait: the message is there."""
        self._set(None)

    def _set(self, deadline: float | None) -> None:
        with self._changed:
            self._deadline = deadline
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while not self._over:
                left = None if self._deadline is None else self._deadline - time.monotonic()
                if left is not None and left <= 0:
                    self.expired = True
                    self._call.cancel()
                    return
                self._changed.wait(left)
