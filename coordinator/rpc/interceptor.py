"""Interceptor around every call: measured, errors as statuses, the caller identified and limited.

The caller is identified before any of its messages is read. Health and reflection are neither
measured nor limited, so that whoever watches this process gets an answer; health is open to all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import grpc
import grpc.aio

from lipt.common.access.certificate import identity_of
from lipt.common.access.local_token import METADATA_KEY
from lipt.common.errors import InvalidRequestError
from lipt.common.observability.logs import Events
from lipt.common.observability.metrics import OTHER, Meters
from lipt.common.rpc.handlers import Context, behaviour_of, is_of_the_contract
from lipt.common.rpc.status import errors_as_status
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


@dataclass(frozen=True)
class Call:
    """The method (`/package.Service/Method`) of a call, and which of its sides stream."""

    method: str
    request_streaming: bool
    response_streaming: bool


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every method once, and keeps its handler."""

    def __init__(
        self,
        identify: Identify,
        events: Events,
        meters: Meters,
        limits: PeerLimits,
    ) -> None:
        self._identify = identify
        self._events = events
        self._meters = meters
        self._limits = limits
        self._handlers: dict[str, Any] = {}
        meters.add(RPC_IN_FLIGHT, by=0.0)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The wrapped handler of one call."""
        method = handler_call_details.method
        if (kept := self._handlers.get(method)) is not None:
            return kept
        handler = await continuation(handler_call_details)
        if handler is None:  # gRPC itself answers, and a made-up method names no series
            self._meters.observe(RPC, 0.0, OTHER, grpc.StatusCode.UNIMPLEMENTED.name)
            return None
        self._handlers[method] = handler if is_open(method) else self._wrapped(method, handler)
        return self._handlers[method]

    def _wrapped(self, method: str, handler: Any) -> Any:
        call = Call(method, handler.request_streaming, handler.response_streaming)
        around = self._counted if is_of_the_contract(method) else self._checked
        behaviour = behaviour_of(handler)

        async def unary(requests: Any, context: Context) -> Any:
            async with around(call, context):
                request = requests if call.request_streaming else await _single(context)
                return await behaviour(request, context)

        async def stream(requests: Any, context: Context) -> AsyncIterator[Any]:
            async with around(call, context):
                request = requests if call.request_streaming else await _single(context)
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        yield response

        # gRPC reads a single request before it asks the handler of one. With handlers of streams
        # the checks come first, and `_single` reads it.
        make: Any = (
            grpc.stream_stream_rpc_method_handler
            if call.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(
            stream if call.response_streaming else unary,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    @asynccontextmanager
    async def _checked(self, call: Call, context: Context) -> AsyncIterator[None]:
        async with errors_as_status(context, call.method, self._events):
            self._admit(call, context)
            yield

    @asynccontextmanager
    async def _counted(self, call: Call, context: Context) -> AsyncIterator[None]:
        with self._measured(call, context):
            async with errors_as_status(context, call.method, self._events):
                self._admit(call, context)
                async with self._limited(call, context):
                    yield

    def _admit(self, call: Call, context: Context) -> None:
        caller = self._identify(_shown(context))
        require_role(caller, call.method)
        # In the task that runs the handler: each call has one of its own.
        note_caller(caller)

    @contextmanager
    def _measured(self, call: Call, context: Context) -> Iterator[None]:
        began, gone, meters = perf_counter(), False, self._meters
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

    @asynccontextmanager
    async def _limited(self, call: Call, context: Context) -> AsyncIterator[None]:
        limits, peer = self._limits, peer_of(context)
        streams = call.request_streaming or call.response_streaming
        waits = limits.enter(peer, streams=streams, registers=call.method == _REGISTER)
        try:
            if waits:
                await asyncio.sleep(waits)
            yield
        finally:
            limits.leave(peer, streams=streams)


async def _single(context: Context) -> Any:
    request = await context.read()
    if request is grpc.aio.EOF:
        raise InvalidRequestError("the call has ended without a request. Send one message.")
    return request


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
