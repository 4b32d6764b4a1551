"""RPC handlers: wrapped once per method by interceptors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, TypeAlias

import grpc
import grpc.aio

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


def is_of_the_contract(method: str) -> bool:
    """Whether a method (`/package.Service/Method`) is ours: health and reflection are not."""
    return method.startswith("/lipt.v1.")


def behaviour_of(handler: Any) -> Any:
    """The servicer's method behind a handler."""
    return getattr(handler, _kind(handler))


def with_behaviour(
    handler: Any, behaviour: Any, *, deserializer: Callable[[bytes], Any] | None = None
) -> Any:
    """A handler of the same kind with another method behind it, and perhaps another parser."""
    return getattr(grpc, f"{_kind(handler)}_rpc_method_handler")(
        behaviour,
        request_deserializer=deserializer or handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def within(
    behaviour: Any,
    around: Callable[[Context], AbstractAsyncContextManager[None]],
    *,
    streams_responses: bool,
) -> Any:
    """The method as it runs inside of a block that each call opens."""

    async def unary(request: Any, context: Context) -> Any:
        async with around(context):
            return await behaviour(request, context)

    async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
        async with around(context), aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                yield response

    return stream if streams_responses else unary


def _kind(handler: Any) -> str:
    streams = (handler.request_streaming, handler.response_streaming)
    return "_".join("stream" if several else "unary" for several in streams)
