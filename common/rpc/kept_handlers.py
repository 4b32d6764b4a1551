"""Kept handlers: interceptors wrap the handler of a method once, and not at every call.

gRPC asks them for one at each call. That it may be kept is a rule for the interceptors behind this
one: what they put around a handler depends on its method alone, and what is particular to a call
is asked of its context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio


class KeptHandlers(grpc.aio.ServerInterceptor):
    """Comes first: keeps what all others have made of each method's handler."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._handlers: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler of one call."""
        method = handler_call_details.method
        handler = self._handlers.get(method)
        if handler is None:
            handler = await continuation(handler_call_details)
            # There is no end of names that no service has.
            if handler is not None:
                self._handlers[method] = handler
        return handler
