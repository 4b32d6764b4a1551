from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from lipt.trainer.client import forking
from lipt.trainer.client.forking import ForkAwareChannel, Hold


class FakeChannel:
    def __init__(self) -> None:
        self.ended = threading.Event()

    @property
    def closed(self) -> bool:
        return self.ended.is_set()

    def close(self) -> None:
        self.ended.set()


class Opened:
    """Opens fake channels, and keeps them."""

    def __init__(self) -> None:
        self.channels: list[FakeChannel] = []

    def __call__(self) -> FakeChannel:
        self.channels.append(FakeChannel())
        return self.channels[-1]

    @property
    def closed(self) -> list[bool]:
        return [channel.closed for channel in self.channels]


@pytest.fixture
def opened() -> Opened:
    return Opened()


@pytest.fixture
def channel(opened: Opened) -> ForkAwareChannel[FakeChannel]:
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


def test_a_channel_stays_from_call_to_call(
    channel: ForkAwareChannel[FakeChannel], opened: Opened
) -> None:
    for _ in range(3):
        with channel.held() as held:
            assert held.channel is opened.channels[0]
    assert opened.closed == [False]


def test_an_idle_channel_is_closed_before_a_fork_and_opened_again(
    channel: ForkAwareChannel[FakeChannel], opened: Opened
) -> None:
    assert fork(lambda: opened.closed == [True])
    assert opened.closed == [True]
    with channel.held() as held:
        assert held.channel is opened.channels[1]
    assert opened.closed == [True, False]


def test_a_fork_cuts_calls_and_waits_until_they_have_let_go(
    channel: ForkAwareChannel[FakeChannel], opened: Opened
) -> None:
    holding, holds = threading.Event(), list[Hold[FakeChannel]]()

    def call() -> None:
        with channel.held() as hold:
            holds.append(hold)
            holding.set()
            opened.channels[0].ended.wait()
        with channel.held() as again:  # once the fork is over
            holds.append(again)

    thread = threading.Thread(target=call)
    thread.start()
    holding.wait()

    def opens_its_own() -> bool:
        with channel.held() as own:
            return own.channel is not opened.channels[0] and len(holds) == 1

    assert fork(opens_its_own)
    thread.join()
    assert [hold.cut for hold in holds] == [True, False]
    assert holds[1].channel is opened.channels[1]
    assert opened.closed == [True, False]


def test_a_stream_that_the_forking_thread_left_open_is_cut_and_not_waited_for(
    channel: ForkAwareChannel[FakeChannel], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forking, "_UNWIND_SECONDS", 0.01)
    with channel.held() as hold:
        assert fork(lambda: opened.closed == [True])
        assert hold.cut


def test_closing_ends_all_calls_and_a_later_one_opens_another(
    channel: ForkAwareChannel[FakeChannel], opened: Opened
) -> None:
    with channel.held():
        channel.close()
        assert opened.closed == [True]
    with channel.held():
        assert opened.closed == [True, False]
    assert fork(lambda: True)
    assert opened.closed == [True, True]  # the ended holder is not counted
