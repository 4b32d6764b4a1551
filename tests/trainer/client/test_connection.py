import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lipt.common.errors import ForkedError, QueueFullError, TooManyCallsError, UnreachableError
from lipt.trainer.client import connection
from lipt.trainer.client.connection import Contact, ForkAwareChannel, Reconnection, silent_seconds
from tests.clock import Clock

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


@pytest.mark.parametrize(
    ("now", "heard_at", "is_interrupted", "seconds"),
    [
        # Of the signs of life, one every 5 s, two are missing after 12 s.
        (111.0, 100.0, False, None),
        (112.0, 100.0, False, 12.0),
        # A broken stream needs no patience.
        (101.0, 100.0, True, 1.0),
        # Nothing is followed.
        (500.0, None, False, None),
        (500.0, None, True, None),
    ],
)
def test_a_coordinator_is_silent_after_two_missing_signs_of_life_or_an_interruption(
    now: float, heard_at: float | None, is_interrupted: bool, seconds: float | None
) -> None:
    assert silent_seconds(now, heard_at, is_interrupted=is_interrupted) == seconds


@pytest.mark.parametrize(("error", "is_silent"), [(AWAY, True), *((busy, False) for busy in BUSY)])
def test_a_stream_is_silent_from_its_interruption_to_its_next_message(
    error: Any, is_silent: bool
) -> None:
    clock, silences = Clock(), list[Any]()
    streams: Any = iter([[1], error, [2]])
    contact = Contact("head:1", clock=clock)

    def open_stream() -> Any:
        stream = next(streams)
        clock.now += 1.0
        if stream is error:
            raise error
        return stream

    def sleep(_: float) -> None:
        silences.append(contact.silence())

    assert contact.silence() is None
    messages = Reconnection(60.0, contact=contact, sleep=sleep).resumed(open_stream)
    assert next(messages) == 1
    clock.now += 11.0
    assert contact.silence() is None
    clock.now += 1.0
    lasting = contact.silence()
    assert lasting is not None
    assert str(lasting) == (
        f"coordinator head:1 does not answer since {lasting.since:%H:%M:%S}; waiting"
    )
    assert next(messages) == 2
    assert contact.silence() is None
    # The first stream ended by itself, which is an interruption as well.
    assert [silence is not None for silence in silences] == [True, is_silent]
    messages.close()
    clock.now += 60.0
    assert contact.silence() is None


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
