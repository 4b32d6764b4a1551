"""Traced calls: a call's trace travels in its metadata, as W3C's `traceparent`.

Calls that only wait, or repeat often, are no spans.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from lipt.common.errors import LiptError
from lipt.common.observability.tracing import (
    TRACEPARENT,
    Span,
    attached,
    begin,
    current_traceparent,
    is_tracing,
    join,
    span,
    valid_traceparent,
)
from lipt.common.rpc.handlers import (
    Context,
    behaviour_of,
    is_of_the_contract,
    with_behaviour,
    within,
)
from lipt.common.rpc.status import EveryCall, with_entries

_WITHOUT_SPAN = frozenset(
    {
        "/lipt.v1.InfoService/GetInfo",
        "/lipt.v1.RunService/GetRun",
        "/lipt.v1.RunService/ListRuns",
        "/lipt.v1.RunService/WatchRun",
        "/lipt.v1.WorkerService/AcquireAssignment",
        "/lipt.v1.WorkerService/Heartbeat",
        "/lipt.v1.WorkerService/Register",
    }
)
_STATUS = "rpc.grpc.status_code"


def traced(channel: grpc.Channel) -> grpc.Channel:
    """The channel, whose calls take the trace along that they are made in, where there are any."""
    return grpc.intercept_channel(channel, EveryCall(_intercept)) if is_tracing() else channel


def received(metadata: Any) -> str:
    """The `traceparent` in a peer's metadata; empty where there is none, or not one."""
    found = [str(value) for key, value in metadata or () if key == TRACEPARENT]
    return valid_traceparent(found[0]) if len(found) == 1 else ""


class TracingInterceptor(grpc.aio.ServerInterceptor):
    """Runs each call in the trace that its caller has sent, most with one answer as a span."""

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
        if handler.response_streaming:
            # Each call has a task of its own. No span: with one more generator around a stream that
            # is cut while its reader stalls, gRPC was seen to crash.
            join(received(handler_call_details.invocation_metadata))
            return handler
        around = _in_trace if method in _WITHOUT_SPAN else _as_span
        behaviour = within(
            behaviour_of(handler),
            lambda context: around(context, method),
            streams_responses=False,
        )
        return with_behaviour(handler, behaviour)


@asynccontextmanager
async def _in_trace(context: Context, method: str) -> AsyncIterator[None]:  # noqa: ARG001 - as below
    with attached(received(context.invocation_metadata())):
        yield


@asynccontextmanager
async def _as_span(context: Context, method: str) -> AsyncIterator[None]:
    with (
        attached(received(context.invocation_metadata())),
        span(_name(method), kind="SERVER", named=_named(method)) as call,
    ):
        try:
            yield
        except LiptError as error:
            call.note_as({_STATUS: error.code.value[0]})
            raise


def _intercept(continuation: Callable[..., Any], details: Any, requests: Any) -> Any:
    method = details.method
    if method in _WITHOUT_SPAN or not is_of_the_contract(method):
        return continuation(_with(details, current_traceparent()), requests)
    begun = begin(_name(method), kind="CLIENT", named=_named(method))
    call = continuation(_with(details, begun.traceparent), requests)
    call.add_done_callback(lambda ended: _end(begun, ended))
    return call


def _with(details: Any, traceparent: str) -> Any:
    return with_entries(details, [(TRACEPARENT, traceparent)]) if traceparent else details


def _end(begun: Span, call: Any) -> None:
    code = call.code() or grpc.StatusCode.UNKNOWN
    begun.note_as({_STATUS: code.value[0]})
    # Who leaves a stream has what it came for.
    if code not in {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED}:
        begun.fail(code.name)
    begun.end()


def _name(method: str) -> str:
    return method.removeprefix("/")


def _named(method: str) -> dict[str, str | float]:
    service, _, name = _name(method).partition("/")
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
