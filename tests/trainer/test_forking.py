from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lipt.trainer.forking import ForkAwareChannel


class FakeChannel:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Opened:
    """Opens fake channels, and keeps them."""

    def __init__(self) -> None:
        self.channels: list[FakeChannel] = []

    def __call__(self) -> Any:
        self.channels.append(FakeChannel())
        return self.channels[-1]

    @property
    def closed(self) -> list[bool]:
        return [channel.closed for channel in self.channels]


@pytest.fixture
def opened() -> Opened:
    return Opened()


@pytest.fixture
def channel(opened: Opened) -> ForkAwareChannel:
    return ForkAwareChannel(opened)


def fork(in_child: Callable[[], bool]) -> bool:
    """Whether something holds in the child of a fork."""
    child = os.fork()
    if not child:
        holds = False
        try:
            holds = in_child()
        finally:
            os._exit(0 if holds else 1)
    return os.waitpid(child, 0)[1] == 0


def test_a_channel_stays_from_call_to_call(channel: ForkAwareChannel, opened: Opened) -> None:
    for _ in range(3):
        with channel.held() as held:
            assert held is opened.channels[0]  # type: ignore[comparison-overlap]
    assert opened.closed == [False]


def test_an_idle_channel_is_closed_before_a_fork_and_opened_again(
    channel: ForkAwareChannel, opened: Opened
) -> None:
    assert fork(lambda: opened.closed == [True])
    assert opened.closed == [True]
    with channel.held() as held:
        assert held is opened.channels[1]  # type: ignore[comparison-overlap]
    assert opened.closed == [True, False]


def test_a_channel_with_a_call_on_it_stays_with_the_parent(
    channel: ForkAwareChannel, opened: Opened
) -> None:
    def opens_its_own() -> bool:
        with channel.held() as own:
            return own is not opened.channels[0] and not opened.channels[0].closed  # type: ignore[comparison-overlap]

    with channel.held():
        assert fork(opens_its_own)
        assert opened.closed == [False]
        with channel.held() as held:
            assert held is opened.channels[0]  # type: ignore[comparison-overlap]
    assert fork(lambda: True)
    assert opened.closed == [True]


def test_a_lock_that_is_held_in_another_thread_does_not_stop_the_child(
    channel: ForkAwareChannel,
) -> None:
    holding, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with channel.held():
            holding.set()
            forked.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()

    def uses_it() -> bool:
        with channel.held():
            return True

    assert fork(uses_it)
    forked.set()
    thread.join()


def test_closing_ends_all_calls_and_a_later_one_opens_another(
    channel: ForkAwareChannel, opened: Opened
) -> None:
    with channel.held():
        channel.close()
        assert opened.closed == [True]
    with channel.held():
        assert opened.closed == [True, False]
    assert fork(lambda: True)
    assert opened.closed == [True, True]  # the ended holder is not counted
