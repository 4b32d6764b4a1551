"""Limiting: every call of the contract is counted for its peer before it is served.

Health and reflection are left alone: whoever watches this process has to get an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from lipt.common.errors import TooManyCallsError
from lipt.coordinator.rpc.peer_limits import PeerLimits
from lipt.coordinator.rpc.peers import peer_of

_OWN_SERVICES = "/lipt.v1."
_REGISTER = "/lipt.v1.WorkerService/Register"

_Context = grpc.aio.ServicerContext[Any, Any]


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
        if handler is None or not method.startswith(_OWN_SERVICES):
            return handler
        streams = (handler.request_streaming, handler.response_streaming)
        kind = "_".join("stream" if streaming else "unary" for streaming in streams)
        behaviour = getattr(handler, kind)

        @asynccontextmanager
        async def admitted(context: _Context) -> AsyncIterator[None]:
            peer = peer_of(context)
            try:
                waits = self._limits.enter(
                    peer, streams=any(streams), registers=method == _REGISTER
                )
            except TooManyCallsError:
                with self._limits.refusing(peer) as seconds:
                    await self._sleep(seconds)
                raise
            try:
                if waits:
                    await self._sleep(waits)
                yield
            finally:
                self._limits.leave(peer, streams=any(streams))

        async def limited(request: Any, context: _Context) -> Any:
            async with admitted(context):
                return await behaviour(request, context)

        async def limited_stream(request: Any, context: _Context) -> AsyncIterator[Any]:
            async with admitted(context), aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response

        return getattr(grpc, f"{kind}_rpc_method_handler")(
            limited_stream if handler.response_streaming else limited,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
