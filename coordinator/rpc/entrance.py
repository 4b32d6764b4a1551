"""Entrance: every call is refused here, before any of its messages is read, or has a caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from lipt.common.access.certificate import identity_of
from lipt.common.access.local_token import METADATA_KEY
from lipt.common.errors import InvalidRequestError
from lipt.common.observability.logs import Events
from lipt.common.rpc.handlers import Context, behaviour_of
from lipt.common.rpc.status import errors_as_status
from lipt.coordinator.access.caller import note_caller
from lipt.coordinator.access.identification import Identify, Shown
from lipt.coordinator.access.table import is_open, require_role


class EntranceInterceptor(grpc.aio.ServerInterceptor):
    """Lets a call go on to the others when its caller is known, and may make it."""

    def __init__(self, identify: Identify, events: Events) -> None:
        """Ask `identify` who calls, and count in `events` whom it refuses."""
        self._identify = identify
        self._events = events

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Put the check before the handler of one call."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or is_open(method):
            return handler
        # gRPC reads a single request before it asks the handler of one. As handlers of streams,
        # all of them come first: `guarded` reads it.
        if handler.response_streaming:
            make, guarded = grpc.stream_stream_rpc_method_handler, self._guarded_stream
        else:
            make, guarded = grpc.stream_unary_rpc_method_handler, self._guarded_unary
        return make(
            guarded(behaviour_of(handler), method, several=handler.request_streaming),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _guarded_unary(self, behaviour: Any, method: str, *, several: bool) -> Any:
        async def guarded(requests: Any, context: Context) -> Any:
            async with errors_as_status(context, method, self._events):
                self._admit(context, method)
                request = requests if several else await _single(context)
            return await behaviour(request, context)

        return guarded

    def _guarded_stream(self, behaviour: Any, method: str, *, several: bool) -> Any:
        async def guarded(requests: Any, context: Context) -> AsyncIterator[Any]:
            async with errors_as_status(context, method, self._events):
                self._admit(context, method)
                request = requests if several else await _single(context)
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response

        return guarded

    def _admit(self, context: Context, method: str) -> None:
        caller = self._identify(_shown(context))
        require_role(caller, method)
        # In the task that runs the handler: each call has one of its own.
        note_caller(caller)


def _shown(context: Context) -> Shown:
    metadata = {str(key): str(value) for key, value in context.invocation_metadata() or ()}
    return Shown(
        authorization=metadata.get("authorization"),
        local_token=metadata.get(METADATA_KEY),
        certificate=identity_of(context.auth_context()),
        peer=context.peer(),
    )


async def _single(context: Context) -> Any:
    request = await context.read()
    if request is grpc.aio.EOF:
        raise InvalidRequestError("the call has ended without a request. Send one message.")
    return request
