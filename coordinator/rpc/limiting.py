"""Limiting: every call of the contract is counted for its peer before it is served.

Health and reflection are left alone: whoever watches this process has to get an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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
from lipt.coordinator.rpc.peer_limits import PeerLimits
from lipt.coordinator.rpc.peers import peer_of

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
