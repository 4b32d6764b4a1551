"""Fork-aware channel: for a process that forks, as one does whose DataLoader has workers.

gRPC's threads do not exist in a fork's child, while their locks and sockets do, and a fork
with a call on its way can lock up the child before it begins. So before a fork every channel
is closed. A call that this cuts (of a subset that is prefetched, say) ends at once, and can
be made again on the channel that is opened after the fork.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

# For what is cut to let go of the channel. A stream that the forking thread itself has
# left open cannot, and is not waited for any longer.
_UNWIND_SECONDS = 2.0

_channels: weakref.WeakSet[ForkAwareChannel[Any]] = weakref.WeakSet()

# Kept in a child so that nothing there runs their destructors.
_of_the_parent: list[object] = []


class Closable(Protocol):
    """A channel, or what stands for one."""

    def close(self) -> None:
        """End it with all calls on it."""
        ...


ChannelT = TypeVar("ChannelT", bound=Closable)


@dataclass(eq=False)
class Hold(Generic[ChannelT]):
    """A channel in use, and whether a fork has ended it meanwhile."""

    channel: ChannelT
    cut: bool = False


class ForkAwareChannel(Generic[ChannelT]):
    """A channel that ends before a fork, or with `close`, and is opened again when held.

    Args:
        open_channel: makes a channel and the stubs on it, which gRPC cannot make on a channel
            that is closed meanwhile; called at once, so that what is wrong with it is
            known early, though gRPC connects only when there is a call.
    """

    def __init__(self, open_channel: Callable[[], ChannelT]) -> None:
        self._open = open_channel
        self._changed = threading.Condition()
        self._channel: ChannelT | None = open_channel()
        self._holds: set[Hold[ChannelT]] = set()
        self._forking = False
        _channels.add(self)
        _watch_forks()

    @contextmanager
    def held(self) -> Iterator[Hold[ChannelT]]:
        """The channel, open until the end of the context unless it is closed or cut."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            if self._channel is None:
                self._channel = self._open()
            hold = Hold(self._channel)
            self._holds.add(hold)
        try:
            yield hold
        finally:
            with self._changed:
                self._holds.discard(hold)
                self._changed.notify_all()

    def close(self) -> None:
        """End the channel with all calls on it."""
        with self._changed:
            self._end()

    def before_fork(self) -> None:
        """Close the channel, and wait until nobody holds it; nobody can until the fork is over."""
        with self._changed:
            self._forking = True
            for hold in self._holds:
                hold.cut = True
            self._end()
            self._changed.wait_for(lambda: not self._holds, _UNWIND_SECONDS)

    def in_parent(self) -> None:
        """Let the channel be held again."""
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def in_child(self) -> None:
        """Forget what the parent's threads hold, and the lock that one may have had."""
        _of_the_parent.append(self._holds)
        self._changed = threading.Condition()
        self._holds, self._forking = set(), False

    def _end(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


@functools.cache
def _watch_forks() -> None:
    """Registered once, when there is a first channel: it cannot be undone."""
    if hasattr(os, "register_at_fork"):  # where processes fork at all
        os.register_at_fork(
            before=functools.partial(_each, ForkAwareChannel.before_fork),
            after_in_parent=functools.partial(_each, ForkAwareChannel.in_parent),
            after_in_child=functools.partial(_each, ForkAwareChannel.in_child),
        )


def _each(act: Callable[[ForkAwareChannel[Any]], None]) -> None:
    for channel in list(_channels):
        act(channel)
