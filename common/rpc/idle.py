"""Idle watchdog: ends a call on which nothing moves.

gRPC's deadlines count from a call's start, and a run is watched for hours, a blob takes as long
as it takes. A peer that vanished without a word is told by the time since its last message.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

MessageT = TypeVar("MessageT")


class Cancellable(Protocol):
    """A call in flight."""

    def cancel(self) -> object:
        """End it; whoever waits for its next message is woken with an error."""
        ...


class IdleWatchdog:
    """Cancels a call when one wait on it takes longer than `idle_seconds`.

    Attributes:
        expired: whether it did.
    """

    def __init__(self, idle_seconds: float) -> None:
        self.expired = False
        self._idle_seconds = idle_seconds
        self._deadline: float | None = None
        self._over = threading.Event()

    @contextmanager
    def over(self, call: Cancellable) -> Iterator[None]:
        """Watch a call during the block, and end it with the block if it is still open."""
        self.wait_begins()
        thread = threading.Thread(target=self._watch, args=[call], name="lipt-idle", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            call.cancel()

    def messages(self, call: Iterable[MessageT]) -> Iterator[MessageT]:
        """The call's messages; who takes them may be as long as it likes over each."""
        for message in call:
            self._deadline = None
            yield message
            self.wait_begins()

    def wait_begins(self) -> None:
        """From now on the peer has `idle_seconds` again."""
        self._deadline = time.monotonic() + self._idle_seconds

    def _watch(self, call: Cancellable) -> None:
        left: float = self._idle_seconds
        # It looks in time for a wait that began while it slept: no message has to wake it.
        while not self._over.wait(left):
            deadline = self._deadline
            left = self._idle_seconds if deadline is None else deadline - time.monotonic()
            if left <= 0:
                self.expired = True
                call.cancel()
                return
