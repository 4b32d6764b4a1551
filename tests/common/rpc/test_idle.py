from __future__ import annotations

import threading
from collections.abc import Iterator

from lipt.common.rpc.channel import IdleWatchdog


class Call:
    """Gives two messages, then nothing until it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    def __iter__(self) -> Iterator[int]:
        yield from (0, 1)
        assert self.cancelled.wait(60)


def test_a_call_that_gives_nothing_is_ended() -> None:
    call, watchdog = Call(), IdleWatchdog(0.01)
    with watchdog.over(call):
        assert call.cancelled.wait(60)
    assert watchdog.expired


def test_only_the_waits_between_messages_count() -> None:
    call, watchdog = Call(), IdleWatchdog(0.01)
    with watchdog.over(call):
        for _ in watchdog.messages(call):
            # Longer than several waits may be.
            assert not call.cancelled.wait(0.05)
    assert watchdog.expired


def test_a_call_ends_with_the_block() -> None:
    call = Call()
    with IdleWatchdog(60.0).over(call):
        pass
    assert call.cancelled.is_set()
