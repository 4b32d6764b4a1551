"""Interceptor: what happens around every call, as a chain of steps.

From the outside in: the whole call is measured, refusals become statuses, the caller is identified
before any of its messages is read, and its limits are applied. Health and reflection are neither
measured nor limited, so that whoever watches this process gets an answer; health is open to all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import grpc

from lipt.common.access.certificate import identity_of
from lipt.common.access.tokens import METADATA_KEY
from lipt.common.observability.logs import Events
from lipt.common.observability.metrics import OTHER, Meters
from lipt.common.rpc.handlers import (
    Call,
    Context,
    Interceptor,
    Step,
    is_of_the_contract,
    refusals,
    tracing,
)
from lipt.common.text import printable
from lipt.coordinator.access.caller import (
    ANYBODY,
    current_caller,
    is_open,
    note_caller,
    require_role,
)
from lipt.coordinator.access.identification import Identify, Shown
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.instruments import CANCELLED, PEER_REFUSALS, RPC, RPC_IN_FLIGHT, RPC_LONG
from lipt.coordinator.rpc.limits import PeerLimits, peer_of

# One waits for work, the other for a file.
_LONG = frozenset({"/lipt.v1.WorkerService/AcquireAssignment", "/lipt.v1.BlobService/WriteBlob"})
_REGISTER = "/lipt.v1.WorkerService/Register"
_NOT_REFUSED = frozenset({grpc.StatusCode.OK.name, CANCELLED})


class CallInterceptor(Interceptor):
    """Runs every call inside its steps."""

    def __init__(
        self,
        identify: Identify,
        events: Events,
        meters: Meters,
        limits: PeerLimits,
    ) -> None:
        checked: tuple[Step, ...] = (refusals(events), _identified(identify))
        counted = (_measured(meters), *checked, _limited(limits), tracing)

        def steps(method: str) -> Sequence[Step]:
            if is_open(method):
                return ()
            return counted if is_of_the_contract(method) else checked

        # A made-up method names no series.
        unimplemented = grpc.StatusCode.UNIMPLEMENTED.name
        super().__init__(steps, on_unknown=lambda: meters.observe(RPC, 0.0, OTHER, unimplemented))


def _measured(meters: Meters) -> Step:
    meters.add(RPC_IN_FLIGHT, by=0.0)

    @asynccontextmanager
    async def step(call: Call, context: Context) -> AsyncIterator[None]:
        began, gone = perf_counter(), False
        meters.add(RPC_IN_FLIGHT)
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
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

    return step


def _identified(identify: Identify) -> Step:
    @asynccontextmanager
    async def step(call: Call, context: Context) -> AsyncIterator[None]:
        caller = identify(_shown(context))
        require_role(caller, call.method)
        # In the task that runs the handler: each call has one of its own.
        note_caller(caller)
        yield

    return step


def _limited(limits: PeerLimits) -> Step:
    @asynccontextmanager
    async def step(call: Call, context: Context) -> AsyncIterator[None]:
        peer, streams = peer_of(context), call.request_streaming or call.response_streaming
        waits = limits.enter(peer, streams=streams, registers=call.method == _REGISTER)
        try:
            if waits:
                await asyncio.sleep(waits)
            yield
        finally:
            limits.leave(peer, streams=streams)

    return step


def _shown(context: Context) -> Shown:
    metadata = {str(key): str(value) for key, value in context.invocation_metadata() or ()}
    return Shown(
        authorization=metadata.get("authorization"),
        local_token=metadata.get(METADATA_KEY),
        certificate=identity_of(context.auth_context()),
        peer=context.peer(),
    )


def _metered_peer(context: Context) -> str:
    """A caller's name, or else its address without the port, which every connection changes."""
    caller = current_caller()
    if caller.name != ANYBODY.name and caller != OWN_USER:
        return printable(caller.name)
    kind, _, rest = context.peer().partition(":")
    return printable(f"{kind}:{rest.rpartition(':')[0] or rest}")
