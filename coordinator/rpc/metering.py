"""Metering: how long every call of the contract takes, how it ends, and who is refused.

Around all other interceptors: what they refuse, and what waiting for a turn takes, is the call's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import grpc
import grpc.aio

from lipt.common.observability.metrics import OTHER, Meters
from lipt.common.rpc.handlers import (
    Context,
    behaviour_of,
    is_of_the_contract,
    with_behaviour,
    within,
)
from lipt.common.text import printable
from lipt.coordinator.access.caller import ANYBODY, current_caller
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.instruments import CANCELLED, PEER_REFUSALS, RPC, RPC_IN_FLIGHT, RPC_LONG

# One is answered when there is something to answer, the other when a file is here. What streams its
# responses is long as well; below this interceptor every request is a stream.
_LONG = frozenset({"/lipt.v1.WorkerService/AcquireAssignment", "/lipt.v1.BlobService/WriteBlob"})
_NOT_REFUSED = frozenset({grpc.StatusCode.OK.name, CANCELLED})


class MeteringInterceptor(grpc.aio.ServerInterceptor):
    """Measures calls, and changes nothing about them."""

    def __init__(self, meters: Meters, *, clock: Callable[[], float] = perf_counter) -> None:
        """Record in `meters`; `clock` gives seconds."""
        self._meters = meters
        self._clock = clock
        meters.add(RPC_IN_FLIGHT, by=0.0)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:  # gRPC itself answers; whatever was asked for names no series
            self._meters.observe(RPC, 0.0, OTHER, grpc.StatusCode.UNIMPLEMENTED.name)
            return None
        if not is_of_the_contract(method):
            return handler
        long = handler.response_streaming or method in _LONG
        histogram = RPC_LONG if long else RPC
        name = method.rpartition(".")[2]

        @asynccontextmanager
        async def measured(context: Context) -> AsyncIterator[None]:
            meters, began, gone = self._meters, self._clock(), False
            meters.add(RPC_IN_FLIGHT)
            try:
                yield
            except (asyncio.CancelledError, GeneratorExit):
                gone = True
                raise
            finally:
                meters.add(RPC_IN_FLIGHT, by=-1.0)
                code = CANCELLED if gone else _code(context)
                meters.observe(histogram, self._clock() - began, name, code)
                if code not in _NOT_REFUSED:
                    meters.add(PEER_REFUSALS, _peer(context), code)

        return with_behaviour(
            handler,
            within(behaviour_of(handler), measured, streams_responses=handler.response_streaming),
        )


def _code(context: Context) -> str:
    """How a call has ended: what nobody has said went well."""
    code: Any = context.code()
    return code.name if code else grpc.StatusCode.OK.name


def _peer(context: Context) -> str:
    """Who called, in a word that stays the same: a certificate's or token's, or the address.

    Not its port: every connection has another.
    """
    caller = current_caller()
    if caller.name != ANYBODY.name and caller != OWN_USER:
        return printable(caller.name)
    kind, _, rest = context.peer().partition(":")
    return printable(f"{kind}:{rest.rpartition(':')[0] or rest}")
