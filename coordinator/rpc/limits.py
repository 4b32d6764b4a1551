"""Call interceptor: the steps around every call, and the limits per peer.

The order is metrics, errors to statuses, identification, limits. Health needs no credentials; its
streams are limited apart from those of identified callers, and its checks not at all. A call
slightly over its rate waits; beyond that the error names a retry time. Rates use GCRA: the time up
to which they are used.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any

import grpc

from lipt.common.access.peers import sender_of
from lipt.common.access.tls import identity_of
from lipt.common.access.tokens import WORKER_SECRET
from lipt.common.errors import LiptError, OverloadedError, TooManyCallsError
from lipt.common.observability.logs import Events
from lipt.common.observability.metrics import OTHER, Meters
from lipt.common.text import printable
from lipt.coordinator.access.caller import (
    ANYBODY,
    CallCredentials,
    Caller,
    current_caller,
    is_open,
    note_caller,
    require_role,
)
from lipt.coordinator.access.tokens import OWN_USER, Identify, Shown
from lipt.coordinator.instruments import PEER_REFUSALS, RPC, RPC_IN_FLIGHT, RPC_LONG
from lipt.coordinator.rpc.handlers import Call, Context, Interceptor, Step, refusals, tracing
from lipt.coordinator.settings import LimitSettings

# A rate's burst, and a call's maximum wait, in seconds.
_BURST_SECONDS = 1.0
_MAX_WAIT_SECONDS = 1.0
_REGISTRATIONS_BURST_SECONDS = 10.0
# Peers without a current call; a forgotten one starts anew.
_MAX_PEERS = 10_000
_RETRY_SECONDS = 1.0
# A call outlasts its caller's token or certificate by at most so long.
_CHECK_SECONDS = 2.0


def peer_of(context: Context) -> str:
    """Identify the peer by certificate or token, or else by its connection."""
    caller = current_caller()
    if caller != OWN_USER:
        return caller.key
    # The user's own channels have no port, but an agent each: see `open_channel`.
    return f"{context.peer()} {_metadata(context, 'user-agent')}"


def shown_by(context: Context) -> CallCredentials:
    return CallCredentials(current_caller(), _metadata(context, WORKER_SECRET))


def _metadata(context: Context, name: str) -> str:
    value = next((text for key, text in context.invocation_metadata() or () if key == name), "")
    return value if isinstance(value, str) else ""


@dataclass
class _Peer:
    num_calls: int = 0
    num_streams: int = 0
    calls_until: float = 0.0
    registrations_until: float = 0.0


class PeerLimits:
    """Counts the calls of all peers; used in the event loop only."""

    def __init__(self, settings: LimitSettings, *, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._num_calls = 0

    @asynccontextmanager
    async def counted(
        self, peer: str, *, streams: bool, registers: bool = False
    ) -> AsyncIterator[None]:
        """Count a call during the block, which waits for its turn."""
        waits = self.enter(peer, streams=streams, registers=registers)
        try:
            if waits:
                await asyncio.sleep(waits)
            yield
        finally:
            self.leave(peer, streams=streams)

    def enter(self, peer: str, *, streams: bool, registers: bool = False) -> float:
        """Count a call and return its wait in seconds; a TooManyCallsError over the limit."""
        now = self._clock()
        state = self._peers.setdefault(peer, _Peer())
        self._peers.move_to_end(peer)
        try:
            return self._admit(state, now, streams=streams, registers=registers)
        finally:
            while len(self._peers) > _MAX_PEERS:
                idle = (name for name, state in self._peers.items() if not state.num_calls)
                name = next(idle, None)
                if name is None:
                    break
                del self._peers[name]

    def leave(self, peer: str, *, streams: bool) -> None:
        state = self._peers[peer]
        state.num_calls -= 1
        state.num_streams -= streams
        self._num_calls -= 1

    def _admit(self, peer: _Peer, now: float, *, streams: bool, registers: bool) -> float:
        limits = self._settings.per_peer
        in_all, max_streams = self._settings.max_concurrent_calls, limits.max_streams * streams
        if self._num_calls >= in_all:
            raise OverloadedError(
                f"{self._num_calls} calls are under way, {in_all} may be "
                f"(limits.max_concurrent_calls). Call again in {_RETRY_SECONDS:.1f} s.",
                retry_after_seconds=_RETRY_SECONDS,
            )
        counts = (
            ("calls of this peer", peer.num_calls, limits.max_calls, "per_peer.max_calls"),
            ("streams of this peer", peer.num_streams, max_streams, "per_peer.max_streams"),
        )
        for what, number, most, setting in counts:
            if most and number >= most:
                raise _too_many(f"{number} {what} are under way, {most} may be", setting)
        registrations_until, waits = used(
            peer.registrations_until,
            now,
            per_second=limits.registrations_per_minute / 60 if registers else 0.0,
            burst_seconds=_REGISTRATIONS_BURST_SECONDS,
        )
        if waits:
            most = limits.registrations_per_minute
            what = f"this peer registers workers more than {most} times a minute"
            raise _too_many(what, "per_peer.registrations_per_minute", waits)
        calls_until, waits = used(
            peer.calls_until, now, per_second=limits.calls_per_second, burst_seconds=_BURST_SECONDS
        )
        if waits > _MAX_WAIT_SECONDS:
            rate = limits.calls_per_second
            what = f"this peer makes more than {rate:g} calls a second"
            raise _too_many(what, "per_peer.calls_per_second", waits)
        peer.registrations_until, peer.calls_until = registrations_until, calls_until
        peer.num_calls += 1
        peer.num_streams += streams
        self._num_calls += 1
        return waits


def used(
    until: float, now: float, *, per_second: float, burst_seconds: float
) -> tuple[float, float]:
    """The time up to which a rate (0: no limit) is used after a call, and how early it comes."""
    if not per_second:
        return until, 0.0
    until = max(until, now) + 1 / per_second
    return until, max(0.0, until - now - burst_seconds)


def _too_many(problem: str, setting: str, seconds: float = _RETRY_SECONDS) -> TooManyCallsError:
    return TooManyCallsError(
        f"{problem} (limits.{setting}). Call again in {seconds:.1f} s.", retry_after_seconds=seconds
    )


# One waits for work, the other for a file.
_LONG = frozenset({"/lipt.v1.WorkerService/AcquireAssignment", "/lipt.v1.BlobService/WriteBlob"})
_REGISTER = "/lipt.v1.WorkerService/Register"
# Also the code of a call whose client has disconnected.
CANCELLED = grpc.StatusCode.CANCELLED.name
_NOT_REFUSED = frozenset({grpc.StatusCode.OK.name, CANCELLED})


class CallInterceptor(Interceptor):
    """Runs every call inside its steps."""

    def __init__(
        self, identify: Identify, events: Events, meters: Meters, limits: PeerLimits
    ) -> None:
        self._identify, self._meters, self._limits = identify, meters, limits
        self._strangers = PeerLimits(LimitSettings(), clock=monotonic)
        meters.add(RPC_IN_FLIGHT, by=0.0)
        refused = refusals(events)
        limited: tuple[Step, ...] = (refused, self._identified, self._limited)

        def steps(method: str) -> Sequence[Step]:
            if is_open(method):
                return refused, self._opened
            if method.startswith("/lipt.v1."):
                return self._measured, *limited, tracing
            return limited

        # Unknown methods share one time series.
        unimplemented = grpc.StatusCode.UNIMPLEMENTED.name
        super().__init__(steps, on_unknown=lambda: meters.observe(RPC, 0.0, OTHER, unimplemented))

    @asynccontextmanager
    async def _measured(self, call: Call, context: Context) -> AsyncIterator[None]:
        meters, began, gone = self._meters, perf_counter(), False
        meters.add(RPC_IN_FLIGHT)
        try:
            yield
        except asyncio.CancelledError:
            gone = True
            raise
        finally:
            meters.add(RPC_IN_FLIGHT, by=-1.0)
            ended: Any = context.code()
            code = CANCELLED if gone else ended.name if ended else grpc.StatusCode.OK.name
            histogram = RPC_LONG if call.response_streaming or call.method in _LONG else RPC
            name = call.method.rpartition(".")[2]
            meters.observe(histogram, perf_counter() - began, name, code)
            if code not in _NOT_REFUSED:
                meters.add(PEER_REFUSALS, _metered_peer(context), code)

    @asynccontextmanager
    async def _identified(self, call: Call, context: Context) -> AsyncIterator[None]:
        metadata = {str(key): str(value) for key, value in context.invocation_metadata() or ()}
        shown = Shown(
            authorization=metadata.get("authorization"),
            certificate=identity_of(context.auth_context()),
            peer=context.peer(),
        )

        def identified() -> Caller:
            caller = self._identify(shown)
            require_role(caller, call.method)
            return caller

        # Each call has its own task, which runs the handler.
        note_caller(identified())
        async with _ended_by(identified):
            yield

    @asynccontextmanager
    async def _limited(self, call: Call, context: Context) -> AsyncIterator[None]:
        streams, registers = (
            call.request_streaming or call.response_streaming,
            call.method == _REGISTER,
        )
        async with self._limits.counted(peer_of(context), streams=streams, registers=registers):
            yield

    @asynccontextmanager
    async def _opened(self, call: Call, context: Context) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if call.response_streaming:
                counted = self._strangers.counted(sender_of(context.peer()), streams=True)
                await stack.enter_async_context(counted)
            yield


@asynccontextmanager
async def _ended_by(check: Callable[[], object]) -> AsyncIterator[None]:
    """End the block with the first error of `check`, which runs every `_CHECK_SECONDS`."""
    loop, ended = asyncio.get_running_loop(), None
    timer: asyncio.TimerHandle
    try:
        async with asyncio.timeout(None) as limit:

            def look() -> None:
                nonlocal ended, timer
                try:
                    check()
                except LiptError as error:
                    ended = error
                    limit.reschedule(loop.time())
                else:
                    timer = loop.call_later(_CHECK_SECONDS, look)

            timer = loop.call_later(_CHECK_SECONDS, look)
            try:
                yield
            finally:
                timer.cancel()
    except TimeoutError:
        if ended is not None:
            raise ended from None
        raise


def _metered_peer(context: Context) -> str:
    """A caller's name, or else its network: addresses without end would be as many series."""
    caller = current_caller()
    if caller.name != ANYBODY.name:
        return printable(caller.name)
    return printable(sender_of(context.peer()))
