"""Requests of the page: bodies, answers, refusals and streams.

A handler takes fields of the body and of the path by name and type. It returns a value, a response,
or a generator of JSON lines, of which an error is the last.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias

import grpc
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from pydantic import ConfigDict, ValidationError, validate_call
from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message as Sent
from starlette.types import Send

from lipt.common.access.peers import network_of
from lipt.common.errors import BlobTooLargeError, InvalidRequestError, LiptError
from lipt.common.tensor_files import complaint
from lipt.coordinator.app import App
from lipt.coordinator.page.sessions import Attempts, Session, Sessions
from lipt.coordinator.rpc.handlers import count_refusal, incident
from lipt.coordinator.rpc.limits import PeerLimits

MAX_BODY_BYTES = 64 * 1024
# Time limit for receiving a body.
_BODY_SECONDS = 20.0
# A reader that takes no data for this time is disconnected.
_UNREAD_SECONDS = 60.0

_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
}


@dataclass(frozen=True, kw_only=True)
class Page:
    """State that the page's handlers share."""

    app: App
    services: Mapping[str, Any]
    sessions: Sessions
    attempts: Attempts
    limits: PeerLimits
    names: set[str]
    cookie: str
    encrypted: bool


@dataclass(frozen=True)
class PageRequest:
    """An admitted request; a servicer takes it for its call's context."""

    page: Page
    http: Request
    session: Session

    def peer(self) -> str:
        return self.session.peer

    def invocation_metadata(self) -> tuple[()]:
        return ()


Handler: TypeAlias = Callable[..., Awaitable[object]]


def address_of(request: Request) -> str:
    """The sender for limits: an address, or the network of an IPv6 one."""
    return network_of(request.client.host) if request.client is not None else "somewhere"


def require_json(content_type: str | None) -> None:
    """Refuse content types that a form of another site can send."""
    if (content_type or "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidRequestError(
            f"the content type is {(content_type or 'not said')[:100]!r}. Send application/json."
        )


async def read_body(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise BlobTooLargeError(
                        f"the body is larger than {MAX_BODY_BYTES} bytes. Ask for less."
                    )
    except TimeoutError:
        raise InvalidRequestError(
            f"the body has not arrived within {_BODY_SECONDS:g} s. Send it again."
        ) from None
    return bytes(body)


def by_fields(handler: Handler) -> Handler:
    """Wrap a handler: fields of the body become its arguments, checked by their types."""

    @validate_call(config=ConfigDict(strict=True, arbitrary_types_allowed=True))
    @wraps(handler)
    def checked(*request: PageRequest, **fields: object) -> Awaitable[object]:
        return handler(*request, **fields)

    async def handle(request: PageRequest, body: bytes) -> object:
        try:
            fields = {**from_json(body, allow_inf_nan=False), **request.http.path_params}
            answering = checked(request, **fields)
        except ValidationError as error:
            raise InvalidRequestError(f"the request is invalid: {complaint(error)}.") from None
        except (TypeError, ValueError) as error:
            raise InvalidRequestError(f"the request body is invalid: {str(error)[:200]}.") from None
        return await answering

    return handle


def as_json(value: object) -> bytes:
    """A message by all its fields, or a value; infinite numbers and NaN become texts."""
    if not isinstance(value, Message):
        return to_json(value, inf_nan_mode="strings")
    return MessageToJson(
        value,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        indent=None,
    ).encode()


def answer(
    value: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(as_json(value), status, headers, media_type="application/json")


def refuse(page: Page, error: Exception, request: Request) -> Response:
    method = f"{request.method} {request.url.path[:200]}"
    refused = count_refusal(page.app.events, error, method=method, peer=address_of(request))
    status = 413 if isinstance(refused, BlobTooLargeError) else _STATUS.get(refused.code, 500)
    after = refused.retry_after_seconds
    headers = {} if after is None else {"Retry-After": str(math.ceil(after))}
    return answer(_error_value(refused), status=status, headers=headers)


class Streaming(StreamingResponse):
    """A stream that closes its source at its end, also if its reader has stalled."""

    async def stream_response(self, send: Send) -> None:
        async def timely(message: Sent) -> None:
            async with asyncio.timeout(_UNREAD_SECONDS):
                await send(message)

        # All sources of streams here are generators.
        source: Any = self.body_iterator
        with suppress(TimeoutError):
            async with aclosing(source):
                await super().stream_response(timely)


async def response_of(value: object, request: PageRequest) -> Response:
    """A handler's value as a response; a generator streams for as long as the session lasts."""
    if isinstance(value, Response):
        return value
    if isinstance(value, AsyncGenerator):
        lines = _lines(await anext(value), value, request)
        return Streaming(lines, media_type="application/x-ndjson")
    return answer(value)


async def _lines(
    value: object, later_values: AsyncGenerator[object, None], request: PageRequest
) -> AsyncGenerator[bytes, None]:
    async with aclosing(later_values):
        try:
            while request.page.sessions.holds(request.session):
                # A message with thousands of learners would block the event loop.
                yield await asyncio.to_thread(as_json, value) + b"\n"
                value = await anext(later_values)
        except StopAsyncIteration:
            return
        except Exception as error:  # noqa: BLE001 - the outermost frame of a stream
            known = error if isinstance(error, LiptError) else incident(error, "a page's stream")
            yield as_json(_error_value(known)) + b"\n"


def _error_value(error: LiptError) -> dict[str, Any]:
    return {"error": {"reason": error.reason, "message": str(error)}}
