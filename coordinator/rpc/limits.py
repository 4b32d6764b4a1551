"""Peer limits: how often one peer may call, and how much it may have under way at once.

A call that comes a little early waits; beyond that a peer is told when to call again. Rates are
stored as the time up to which they are used (GCRA).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from lipt.common.errors import TooManyCallsError
from lipt.common.rpc.handlers import Context
from lipt.coordinator.access.caller import current_caller
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.settings import LimitSettings

logger = logging.getLogger(__name__)

# A rate's burst in seconds of it, and what a call may wait for.
_BURST_SECONDS = 1.0
_MAX_WAIT_SECONDS = 1.0
_REGISTRATIONS_BURST_SECONDS = 10.0
# Of those without a call now; a forgotten one begins anew.
_MAX_PEERS = 10_000
# One line in the log for a peer that goes on and on.
_WARN_EVERY_SECONDS = 60.0
_RETRY_SECONDS = 1.0


def peer_of(context: Context) -> str:
    """One text per party: its certificate, its token, or else its connection.

    Processes of the coordinator's own user show one token, and go by connections as well.
    """
    caller = current_caller()
    return context.peer() if caller == OWN_USER else caller.key


@dataclass
class _Peer:
    num_calls: int = 0
    num_streams: int = 0
    calls_until: float = 0.0
    registrations_until: float = 0.0
    warned_at: float = float("-inf")


class PeerLimits:
    """Counts the calls of all peers; belongs to the event loop."""

    def __init__(self, settings: LimitSettings, *, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._num_calls = 0

    def enter(self, peer: str, *, streams: bool, registers: bool = False) -> float:
        """Count a call from now on, and say how long it has to wait; `leave` has to follow.

        Raises:
            TooManyCallsError: it is one too many; it is not counted.
        """
        now = self._clock()
        state = self._peers.setdefault(peer, _Peer())
        self._peers.move_to_end(peer)
        try:
            waits = self._admit(state, now, streams=streams, registers=registers)
        except TooManyCallsError as error:
            if now - state.warned_at >= _WARN_EVERY_SECONDS:
                state.warned_at = now
                logger.warning("calls of %s are refused: %s", peer, error)
            raise
        finally:
            self._forget()
        return waits

    def leave(self, peer: str, *, streams: bool) -> None:
        """Note that a counted call has ended."""
        state = self._peers[peer]
        state.num_calls -= 1
        state.num_streams -= streams
        self._num_calls -= 1

    def _admit(self, peer: _Peer, now: float, *, streams: bool, registers: bool) -> float:
        all_peers, limits = self._settings, self._settings.per_peer
        if self._num_calls >= all_peers.max_concurrent_calls:
            raise _too_many(
                f"{self._num_calls} calls are under way, {all_peers.max_concurrent_calls} may "
                "be in all (limits.max_concurrent_calls)"
            )
        if limits.max_calls and peer.num_calls >= limits.max_calls:
            raise _too_many(
                f"{peer.num_calls} calls of this peer are under way, {limits.max_calls} may be "
                "(limits.per_peer.max_calls)"
            )
        if streams and limits.max_streams and peer.num_streams >= limits.max_streams:
            raise _too_many(
                f"{peer.num_streams} streams of this peer are open, {limits.max_streams} may be "
                "(limits.per_peer.max_streams)"
            )
        registrations_until, waits = used(
            peer.registrations_until,
            now,
            per_second=limits.registrations_per_minute / 60 if registers else 0.0,
            burst_seconds=_REGISTRATIONS_BURST_SECONDS,
        )
        if waits:
            raise _too_many(
                f"this peer registers workers more than {limits.registrations_per_minute} times a "
                "minute (limits.per_peer.registrations_per_minute)",
                waits,
            )
        calls_until, waits = used(
            peer.calls_until,
            now,
            per_second=limits.calls_per_second,
            burst_seconds=_BURST_SECONDS,
        )
        if waits > _MAX_WAIT_SECONDS:
            raise _too_many(
                f"this peer makes more than {limits.calls_per_second:g} calls a second "
                "(limits.per_peer.calls_per_second)",
                waits,
            )
        peer.registrations_until, peer.calls_until = registrations_until, calls_until
        peer.num_calls += 1
        peer.num_streams += streams
        self._num_calls += 1
        return waits

    def _forget(self) -> None:
        while len(self._peers) > _MAX_PEERS:
            idle = (name for name, state in self._peers.items() if not state.num_calls)
            name = next(idle, None)
            if name is None:
                return
            del self._peers[name]


def used(
    until: float, now: float, *, per_second: float, burst_seconds: float
) -> tuple[float, float]:
    """Until when a rate (0 for no limit) is used with one more call, and how early that comes.

    So many `burst_seconds` of it may be used ahead of time.
    """
    if not per_second:
        return until, 0.0
    until = max(until, now) + 1 / per_second
    return until, max(0.0, until - now - burst_seconds)


def _too_many(problem: str, seconds: float = _RETRY_SECONDS) -> TooManyCallsError:
    return TooManyCallsError(
        f"{problem}. Call again in {seconds:.1f} s.", retry_after_seconds=seconds
    )
