"""Server-side calls: one interceptor that runs each in a list of steps."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_status import rpc_status
from opentelemetry.trace import SpanKind

from lipt.common.errors import InvalidRequestError, LiptError, to_status
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.tracing import (
    CALL_STATUS,
    begin_call,
    current,
    join,
    received,
)
from lipt.common.rpc.messages import is_spanless, require_lengths

logger = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(frozen=True)
class Call:
    """A call's method (`/package.Service/Method`), and its streaming sides."""

    method: str
    request_streaming: bool
    response_streaming: bool


# Wraps a call in a block that begins before its first message is read.
Step: TypeAlias = Callable[[Call, Context], AbstractAsyncContextManager[None]]


class Interceptor(grpc.aio.ServerInterceptor):
    """Runs every call in its method's `steps`, outermost first; reports unknown methods."""

    def __init__(
        self,
        steps: Callable[[str], Sequence[Step]],
        *,
        on_unknown: Callable[[], object] = lambda: None,
    ) -> None:
        self._steps = steps
        self._on_unknown = on_unknown
        self._handlers: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if method not in self._handlers:
            handler = await continuation(handler_call_details)
            if handler is None:  # not cached: callers may invent names
                self._on_unknown()
                return None
            steps = self._steps(method)
            self._handlers[method] = _within(steps, method, handler) if steps else handler
        return self._handlers[method]


def _within(steps: Sequence[Step], method: str, handler: Any) -> Any:
    call = Call(method, handler.request_streaming, handler.response_streaming)
    sides = (call.request_streaming, call.response_streaming)
    behaviour = getattr(
        handler, "_".join("stream" if is_stream else "unary" for is_stream in sides)
    )

    @asynccontextmanager
    async def inside(requests: Any, context: Context) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            for step in steps:
                await stack.enter_async_context(step(call, context))
            yield _all_checked(requests) if call.request_streaming else await _single(context)

    async def unary(requests: Any, context: Context) -> Any:
        async with inside(requests, context) as request:
            return await behaviour(request, context)

    # Writes instead of yielding, so that steps also end a call that waits for its reader.
    async def stream(requests: Any, context: Context) -> None:
        async with inside(requests, context) as request:
            await _write_all(behaviour(request, context), context)

    # gRPC answers UNKNOWN to errors of a deserializer.
    def parsed(content: bytes) -> Any:
        try:
            return handler.request_deserializer(content)
        except DecodeError as error:
            return error

    # For unary requests gRPC reads the message before the handler; as streams, steps come first.
    make: Any = grpc.stream_unary_rpc_method_handler
    if call.response_streaming:
        make = grpc.stream_stream_rpc_method_handler
    return make(
        stream if call.response_streaming else unary,
        request_deserializer=parsed,
        response_serializer=handler.response_serializer,
    )


async def _write_all(answering: Any, context: Context) -> None:
    if isawaitable(answering):  # it writes by itself
        await answering
        return
    begun = False
    async with aclosing(answering) as responses:
        async for response in responses:
            if not begun:
                # By itself: an error would send it again while the first message waits.
                await context.send_initial_metadata(())
                begun = True
            await context.write(response)


async def _single(context: Context) -> Any:
    request = await context.read()
    if request is grpc.aio.EOF:
        raise InvalidRequestError("the call has ended without a request. Send one message.")
    return _checked(request)


async def _all_checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _checked(request)


def _checked(request: Any) -> Any:
    if isinstance(request, DecodeError):
        raise InvalidRequestError(
            f"the request cannot be read: {request}. Send the message of proto/lipt/v1."
        )
    require_lengths(request)
    return request


def refusals(events: Events) -> Step:
    """Answer an error with its status, and count it."""

    @asynccontextmanager
    async def step(call: Call, context: Context) -> AsyncIterator[None]:
        try:
            yield
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the outermost frame of a call
            if isinstance(error, NotImplementedError):  # a generated base class: an older version
                what = f"{call.method} is not served here."
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, what)
            refused = count_refusal(events, error, method=call.method, peer=context.peer())
            await context.abort_with_status(rpc_status.to_status(to_status(refused)))

    return step


def count_refusal(events: Events, error: Exception, *, method: str, peer: str) -> LiptError:
    """Count and log an error that ends a call; returns the caller's error."""
    refused = error if isinstance(error, LiptError) else incident(error, method)
    kind, why = EventKind.CALL_REFUSED, refused.reason
    events.record(kind, detail=why, method=method, peer=peer, reason=str(refused))
    return refused


def incident(error: Exception, where: str) -> LiptError:
    """Log an unforeseen exception; the caller's error has the log entry's number."""
    number = uuid.uuid4().hex[:8]
    logger.error("incident %s in %s", number, where, exc_info=error)
    return LiptError(f"internal error; the coordinator's log has it as incident {number}.")


@asynccontextmanager
async def tracing(call: Call, context: Context) -> AsyncIterator[None]:
    """Run a call in its caller's trace, with a span for single responses."""
    # Each call has its own task.
    join(received(context.invocation_metadata()))
    # Another generator around a stream crashed gRPC when the stream was cut during a stall.
    if call.response_streaming or is_spanless(call.method):
        yield
        return
    with current(begin_call(call.method, SpanKind.SERVER)) as span:
        try:
            yield
        except LiptError as error:
            span.begun.set_attribute(CALL_STATUS, error.code.value[0])
            raise
