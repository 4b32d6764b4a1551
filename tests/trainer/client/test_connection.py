import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lipt.common.errors import ForkedError, QueueFullError, TooManyCallsError, UnreachableError
from lipt.trainer.client import connection
from lipt.trainer.client.connection import ForkAwareChannel, Reconnection

AWAY = UnreachableError("away.")


BUSY: Any = [
    kind("256 requests wait. Ask again in 5 s.", retry_after_seconds=5.0)
    for kind in (QueueFullError, TooManyCallsError)
]


@pytest.mark.parametrize(
    ("error", "answered", "expected", "limit_seconds", "pauses"),
    [
        # A coordinator that never answered may be at another address.
        (AWAY, False, False, 1.0, []),
        (AWAY, True, False, 1.4, [0.2, 0.4, 0.8]),
        # The third would be 0.8 s, and 0.4 s are left.
        (AWAY, False, True, 1.0, [0.2, 0.4, 0.4]),
        # It has answered, though there was no message.
        *((busy, False, False, 12.0, [5.0] * 3) for busy in BUSY),
    ],
)
def test_pauses_double_until_the_limit_has_passed_since_the_first_failure(
    error: Any, answered: bool, expected: bool, limit_seconds: float, pauses: list[float]
) -> None:
    slept, told = list[float](), list[str]()
    reconnection = Reconnection(
        limit_seconds,
        expected=expected,
        on_pause=told.append,
        clock=lambda: sum(slept),  # stands still but for the pauses
        sleep=slept.append,
    )
    # A fork's victim is asked again at once, and that does not count.
    reconnection.pause(ForkedError("cut."))
    if answered:
        assert next(reconnection.resumed(lambda: ["hello"])) == "hello"
    for _ in pauses:
        reconnection.pause(error)
    with pytest.raises(type(error)) as raised:
        reconnection.pause(error)
    assert raised.value is error
    assert slept == pytest.approx(pauses)
    assert told == [f"{error.problem}; asking again in {pause:.1f} s" for pause in pauses]


class FakeChannel:
    def __init__(self) -> None:
        self.ended = threading.Event()

    def close(self) -> None:
        self.ended.set()


class Opened(list[FakeChannel]):
    def __call__(self) -> FakeChannel:
        self.append(FakeChannel())
        return self[-1]

    @property
    def closed(self) -> list[bool]:
        return [channel.ended.is_set() for channel in self]


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


def test_an_idle_channel_is_closed_before_a_fork(channel: ForkAwareChannel, opened: Opened) -> None:
    assert fork(lambda: opened.closed == [True])
    assert opened.closed == [True]
    with channel.held() as held:
        assert held is opened[1]
    assert opened.closed == [True, False]


def test_a_fork_cancels_calls_and_waits_for_them(channel: ForkAwareChannel, opened: Opened) -> None:
    holding, ended = threading.Event(), list[object]()

    def call() -> None:
        try:
            with channel.held() as held:
                holding.set()
                held.ended.wait()
                raise ValueError  # as a closed channel has it
        except ForkedError:
            ended.append("cut")
        with channel.held() as again:  # once the fork is over
            ended.append(again)

    thread = threading.Thread(target=call)
    thread.start()
    holding.wait()

    def opens_its_own() -> bool:
        with channel.held() as own:
            return own is not opened[0] and ended == ["cut"]

    assert fork(opens_its_own)
    thread.join()
    assert ended == ["cut", opened[1]]
    assert opened.closed == [True, False]


def test_an_open_stream_of_the_forking_thread_is_cancelled(
    channel: ForkAwareChannel, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_UNWIND_SECONDS", 0.01)

    def call() -> None:
        with channel.held():
            assert fork(lambda: opened.closed == [True])
            raise ValueError

    with pytest.raises(ForkedError):
        call()


def test_a_closed_channel_ends_calls_and_reopens(channel: ForkAwareChannel, opened: Opened) -> None:
    def call() -> None:
        with channel.held():
            channel.close()
            assert opened.closed == [True]
            raise ValueError("no fork")

    with pytest.raises(ValueError, match="no fork"):
        call()
    with channel.held():
        assert opened.closed == [True, False]
    assert fork(lambda: True)
    assert opened.closed == [True, True]  # the ended holder is not counted
