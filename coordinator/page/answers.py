"""Answers: values, messages and errors as JSON, and streams that end with their readers."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from starlette.responses import Response, StreamingResponse
from starlette.types import Message as Sent
from starlette.types import Send

from lipt.common.errors import BlobTooLargeError, LiptError

# A reader that takes nothing for so long has left without saying so.
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


def as_dict(message: Message) -> dict[str, Any]:
    """A message by the names of its fields, all of them, enums by name."""
    found: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def as_json(value: object) -> bytes:
    """A value of dicts, lists, texts and numbers; what JSON has no number for, as text."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":")).encode()


def answer(
    value: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A value as an answer."""
    return Response(as_json(value), status, headers, media_type="application/json")


def error_value(error: LiptError) -> dict[str, Any]:
    """An error as the page is told of it."""
    return {"error": {"reason": error.reason, "message": str(error)}}


def error_answer(error: LiptError) -> Response:
    """An error with the status of its code."""
    status = 413 if isinstance(error, BlobTooLargeError) else _STATUS.get(error.code, 500)
    after = error.retry_after_seconds
    headers = {} if after is None else {"Retry-After": str(math.ceil(after))}
    return answer(error_value(error), status=status, headers=headers)


class Streaming(StreamingResponse):
    """A stream whose source is closed when it ends, whoever ends it.

    What is made next waits until the last part is taken: a slow reader costs no memory. One that
    takes nothing at all is left.
    """

    async def stream_response(self, send: Send) -> None:
        """Send all parts."""

        async def timely(message: Sent) -> None:
            async with asyncio.timeout(_UNREAD_SECONDS):
                await send(message)

        # A generator, as all sources of streams here are.
        source: Any = self.body_iterator
        with suppress(TimeoutError):
            async with aclosing(source):
                await super().stream_response(timely)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
