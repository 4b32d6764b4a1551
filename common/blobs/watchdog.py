"""Ends a stream on which nothing moves.

A blob of any size may take as long as it needs, so a stream has no deadline;
a peer that vanished without a word must still be noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc


class IdleWatchdog:
    """Cancels a call when `touch` was not called for some seconds.

    Attributes:
        fired: whether it did.
    """

    def __init__(self, *, idle_seconds: float) -> None:
        self.fired = False
        self._idle_seconds = idle_seconds
        self._touched = True
        self._done = threading.Event()

    def touch(self) -> None:
        """Note that something moved."""
        self._touched = True

    @contextmanager
    def over(self, call: grpc.RpcContext) -> Iterator[None]:
        """Watch a call during the block, and end it with the block if it is still open."""
        thread = threading.Thread(target=self._watch, args=[call], name="blob-idle", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()
            call.cancel()

    def _watch(self, call: grpc.RpcContext) -> None:
        # Between one and two idle times pass before it fires.
        while not self._done.wait(self._idle_seconds):
            if not self._touched:
                self.fired = True
                call.cancel()
                return
            self._touched = False
