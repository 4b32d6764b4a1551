"""A gRPC channel in a process that forks, as one does whose DataLoader has workers.

gRPC's threads do not exist in a fork's child, while their locks and sockets do. So before a
fork, every channel that no call is on is closed, and opened again by the next call. One with
a call on its way (a subset that is prefetched) stays with the parent: the child keeps it
untouched, not even freed, and opens its own if it ever calls.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

_channels: weakref.WeakSet[ForkAwareChannel] = weakref.WeakSet()

# Kept in a child so that nothing there runs their destructors.
_of_the_parent: list[grpc.Channel] = []


class ForkAwareChannel:
    """A channel that ends before a fork, or with `close`, and is opened again when held.

    Args:
        open_channel: makes a channel; called at once, so that what is wrong with it is
            known early, though gRPC connects only when there is a call.
    """

    def __init__(self, open_channel: Callable[[], grpc.Channel]) -> None:
        self._open = open_channel
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = open_channel()
        self._holders = 0
        _channels.add(self)
        _watch_forks()

    @contextmanager
    def held(self) -> Iterator[grpc.Channel]:
        """The channel, open until the end of the context whoever forks meanwhile."""
        with self._lock:
            if self._channel is None:
                self._channel = self._open()
            channel = self._channel
            self._holders += 1
        try:
            yield channel
        finally:
            with self._lock:
                # Not of a holder that crossed a fork, or a `close`: its count is void.
                if self._channel is channel:
                    self._holders -= 1

    def close(self) -> None:
        """End the channel with all calls on it."""
        with self._lock:
            self._end()

    def before_fork(self) -> None:
        """Close the channel where nobody holds it."""
        with self._lock:
            if not self._holders:
                self._end()

    def in_child(self) -> None:
        """Forget the parent's channel, and its lock, which another thread may have held."""
        self._lock = threading.Lock()
        if self._channel is not None:
            _of_the_parent.append(self._channel)
        self._channel, self._holders = None, 0

    def _end(self) -> None:
        channel, self._channel, self._holders = self._channel, None, 0
        if channel is not None:
            channel.close()


@functools.cache
def _watch_forks() -> None:
    """Registered once, when there is a first channel: it cannot be undone."""
    if hasattr(os, "register_at_fork"):  # where processes fork at all
        os.register_at_fork(before=_before_fork, after_in_child=_in_child)


def _before_fork() -> None:
    for channel in list(_channels):
        channel.before_fork()


def _in_child() -> None:
    for channel in list(_channels):
        channel.in_child()
