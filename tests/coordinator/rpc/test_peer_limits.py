from __future__ import annotations

from contextvars import copy_context
from typing import Any, cast

import pytest

from lipt.common.access.roles import Role
from lipt.common.errors import TooManyCallsError
from lipt.coordinator.access.caller import Caller, note_caller
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.rpc import limits as module
from lipt.coordinator.rpc.limits import PeerLimits, peer_of, used
from lipt.coordinator.settings import LimitSettings
from tests.clock import Clock

NONE = {"calls_per_second": 0, "registrations_per_minute": 0, "max_calls": 0, "max_streams": 0}


def limits_of(clock: Clock, *, in_all: int = 1000, **per_peer: float) -> PeerLimits:
    given = {"max_concurrent_calls": in_all, "per_peer": {**NONE, **per_peer}}
    return PeerLimits(LimitSettings.model_validate(given), clock=clock)


def call(limits: PeerLimits, peer: str = "one", *, registers: bool = False) -> float:
    """A call that is over at once; how long it had to wait."""
    waits = limits.enter(peer, streams=False, registers=registers)
    limits.leave(peer, streams=False)
    return waits


def test_a_rate_is_used_call_by_call_and_comes_back_with_time() -> None:
    # Ten a second, a second of them ahead of time: from 100.0 on, ten calls, each 0.1 s.
    until = 0.0
    for number in range(10):
        until, waits = used(until, 100.0, per_second=10.0, burst_seconds=1.0)
        assert (until, waits) == (pytest.approx(100.1 + number / 10), pytest.approx(0.0, abs=1e-9))
    assert used(until, 100.0, per_second=10.0, burst_seconds=1.0)[1] == pytest.approx(0.1)
    assert used(until, 100.1, per_second=10.0, burst_seconds=1.0)[1] == pytest.approx(0.0)
    assert used(until, 500.0, per_second=10.0, burst_seconds=1.0)[0] == pytest.approx(500.1)


def test_calls_beyond_the_burst_wait_up_to_a_second_and_are_refused_beyond_that(
    clock: Clock,
) -> None:
    limits = limits_of(clock, calls_per_second=2)
    # A second's worth at once, then two that wait, then one that would wait for 1.5 s.
    assert [call(limits) for _ in range(4)] == pytest.approx([0.0, 0.0, 0.5, 1.0])
    words = r"more than 2 calls a second \(limits.per_peer.calls_per_second\). Call again in 1.5 s"
    with pytest.raises(TooManyCallsError, match=words) as caught:
        call(limits)
    assert caught.value.retry_after_seconds == pytest.approx(1.5)
    # What is refused uses nothing, and another peer notices nothing.
    assert call(limits, "other") == 0.0
    clock.now += 1.5
    assert call(limits) == pytest.approx(0.0)


def test_registrations_have_a_rate_of_their_own(clock: Clock) -> None:
    limits = limits_of(clock, registrations_per_minute=12)
    # Those of ten seconds at once, which are two.
    for _ in range(2):
        call(limits, registers=True)
    with pytest.raises(TooManyCallsError, match=r"more than 12 times a minute.*in 5\.0 s"):
        call(limits, registers=True)
    assert call(limits) == 0.0
    clock.now += 5.0
    call(limits, registers=True)


def test_calls_and_streams_under_way_are_counted_until_they_end(clock: Clock) -> None:
    limits = limits_of(clock, max_calls=3, max_streams=1)
    limits.enter("one", streams=True)
    with pytest.raises(
        TooManyCallsError, match=r"1 streams of this peer are open, 1 may"
    ) as caught:
        limits.enter("one", streams=True)
    assert caught.value.retry_after_seconds == 1.0
    for _ in range(2):
        limits.enter("one", streams=False)
    with pytest.raises(TooManyCallsError, match=r"3 calls of this peer are under way, 3 may"):
        limits.enter("one", streams=False)
    limits.enter("other", streams=True)
    limits.leave("one", streams=True)
    limits.enter("one", streams=True)


def test_all_peers_together_have_a_limit_too(clock: Clock) -> None:
    limits = limits_of(clock, in_all=8)
    for number in range(8):
        limits.enter(f"peer {number}", streams=False)
    with pytest.raises(TooManyCallsError, match=r"8 calls are under way, 8 may be in all"):
        limits.enter("late", streams=False)
    limits.leave("peer 0", streams=False)
    limits.enter("late", streams=False)


def test_peers_that_have_left_are_forgotten_and_those_that_are_there_are_not(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_PEERS", 3)
    limits = limits_of(clock, max_streams=1)
    limits.enter("there", streams=True)
    for number in range(100):
        call(limits, f"peer {number}")
    assert list(limits._peers) == ["there", "peer 98", "peer 99"]
    with pytest.raises(TooManyCallsError):
        limits.enter("there", streams=True)


def test_a_peer_that_goes_on_is_named_in_the_log_once_a_minute(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    limits = limits_of(clock, max_calls=1)
    limits.enter("greedy", streams=False)
    for _ in range(100):
        with pytest.raises(TooManyCallsError):
            limits.enter("greedy", streams=False)
        clock.now += 1.0
    assert [record.message[:24] for record in caplog.records] == ["calls of greedy are refu"] * 2


PEER = "ipv4:10.0.0.7:40123"


class Context:
    """Of a call, what is known of its connection."""

    def peer(self) -> str:
        return PEER


def key_of(caller: Caller) -> str:
    note_caller(caller)
    return peer_of(cast("Any", Context()))


@pytest.mark.parametrize(
    ("caller", "key"),
    [
        (Caller("certificate:ab12", "box-7", frozenset({Role.WORKER})), "certificate:ab12"),
        (Caller("token:61486203", "the token box-3", frozenset({Role.ADMIN})), "token:61486203"),
        (OWN_USER, PEER),
    ],
)
def test_a_party_is_a_certificate_a_token_or_a_connection(caller: Caller, key: str) -> None:
    assert copy_context().run(key_of, caller) == key
