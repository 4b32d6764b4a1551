"""Limits per peer: calls, streams and bytes, and the interceptor that applies them."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from lipt.common.errors import TooManyCallsError
from lipt.common.rpc.handlers import (
    Context,
    behaviour_of,
    is_of_the_contract,
    with_behaviour,
    within,
)
from lipt.coordinator.access.caller import current_caller
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.settings import LimitSettings

# Peers: by what turns are taken, and quotas and limits counted.


def peer_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """One text per party: its certificate, its token, or else its connection.

    What the coordinator's own user runs beside each other shows one token, and goes by
    connections as well.
    """
    caller = current_caller()
    return context.peer() if caller == OWN_USER else caller.key


# Peer limits: how often one peer may call, and how much it may have under way at once.
#
# A call that comes a little early waits for its turn, so that a burst is slowed down and not
# refused. Who would have to wait for longer is told when to call again, and not at once. Rates are
# kept as the time up to which they are used (GCRA): one number each, and no clock that ticks.

logger = logging.getLogger(__name__)

# What may be used at once of a rate, in seconds of it; and what a call may wait for.
_BURST_SECONDS = 1.0
_MAX_WAIT_SECONDS = 1.0
_REGISTRATIONS_BURST_SECONDS = 10.0
# Of those that are not there now; one that is forgotten begins anew.
_MAX_PEERS = 10_000
# One line in the log for a peer that goes on and on.
_WARN_EVERY_SECONDS = 60.0
_RETRY_SECONDS = 1.0
_REFUSAL_SECONDS = 1.0
_MAX_REFUSED, _MAX_REFUSED_IN_ALL = 64, 512


@dataclass
class _Peer:
    """What one peer does now, and up to when it has used its rates (seconds)."""

    num_calls: int = 0
    num_streams: int = 0
    num_refused: int = 0
    calls_until: float = 0.0
    registrations_until: float = 0.0
    warned_at: float = float("-inf")


class PeerLimits:
    """Counts the calls of all peers; belongs to the event loop."""

    def __init__(self, settings: LimitSettings, *, clock: Callable[[], float]) -> None:
        """Begin with nobody; `clock` gives seconds."""
        self._settings = settings
        self._clock = clock
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._num_calls = self._num_refused = 0

    def enter(self, peer: str, *, streams: bool, registers: bool = False) -> float:
        """Count a call from now on, and say how long it has to wait; `leave` has to follow.

        Args:
            peer: who calls.
            streams: whether messages go to and fro for a while.
            registers: whether it makes a worker known.

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
        """A call that was counted has ended."""
        state = self._peers[peer]
        state.num_calls -= 1
        state.num_streams -= streams
        self._num_calls -= 1

    @contextmanager
    def refusing(self, peer: str) -> Iterator[float]:
        """How long a refusal may take: who calls again at once is slowed down by that.

        Only so many of a peer, and of all, are kept waiting for theirs.
        """
        state = self._peers.setdefault(peer, _Peer())
        if state.num_refused >= _MAX_REFUSED or self._num_refused >= _MAX_REFUSED_IN_ALL:
            yield 0.0
            return
        state.num_refused += 1
        self._num_refused += 1
        try:
            yield _REFUSAL_SECONDS
        finally:
            state.num_refused -= 1
            self._num_refused -= 1

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
        """Forget who was silent for longest of those that have nothing under way."""
        while len(self._peers) > _MAX_PEERS:
            idle = (name for name, state in self._peers.items() if not state.num_calls)
            name = next(idle, None)
            if name is None:
                return
            del self._peers[name]


def used(
    until: float, now: float, *, per_second: float, burst_seconds: float
) -> tuple[float, float]:
    """A rate with one more call in it.

    Args:
        until: up to when it is used, in seconds.
        now: on the same clock.
        per_second: 0 for no limit.
        burst_seconds: how much of it may be used ahead of time.

    Returns:
        Up to when it is used then, and how long the call is too early.
    """
    if not per_second:
        return until, 0.0
    until = max(until, now) + 1 / per_second
    return until, max(0.0, until - now - burst_seconds)


def _too_many(problem: str, seconds: float = _RETRY_SECONDS) -> TooManyCallsError:
    return TooManyCallsError(
        f"{problem}. Call again in {seconds:.1f} s.", retry_after_seconds=seconds
    )


# Limiting: every call of the contract is counted for its peer before it is served.
#
# Health and reflection are left alone: whoever watches this process has to get an answer.

_REGISTER = "/lipt.v1.WorkerService/Register"


class LimitInterceptor(grpc.aio.ServerInterceptor):
    """Lets calls in as `PeerLimits` decides; what it raises is for an interceptor around it."""

    def __init__(
        self,
        limits: PeerLimits,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Count in `limits`; `sleep` waits so many seconds."""
        self._limits = limits
        self._sleep = sleep

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not is_of_the_contract(method):
            return handler
        streams = handler.request_streaming or handler.response_streaming

        @asynccontextmanager
        async def admitted(context: Context) -> AsyncIterator[None]:
            peer = peer_of(context)
            try:
                waits = self._limits.enter(peer, streams=streams, registers=method == _REGISTER)
            except TooManyCallsError:
                with self._limits.refusing(peer) as seconds:
                    await self._sleep(seconds)
                raise
            try:
                if waits:
                    await self._sleep(waits)
                yield
            finally:
                self._limits.leave(peer, streams=streams)

        limited = within(
            behaviour_of(handler), admitted, streams_responses=handler.response_streaming
        )
        return with_behaviour(handler, limited)
