"""Requests of the page: what a route is given, and how values, errors and progress are answered.

A computation answers in lines of JSON: progress first, the result or its error last. A request
refused before the first line has an answer of its own, with its status.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message as Sent
from starlette.types import Send

from lipt.common.errors import BlobTooLargeError, InvalidRequestError, LiptError
from lipt.common.rpc.handlers import count_refusal, incident
from lipt.coordinator.app import App
from lipt.coordinator.compute.progress import OnProgress
from lipt.coordinator.page.sessions import Attempts, Session, Sessions
from lipt.coordinator.rpc.info import InfoService
from lipt.coordinator.rpc.limits import PeerLimits
from lipt.coordinator.rpc.subsets import Answering

MAX_BODY_BYTES = 64 * 1024
# A body has to arrive within this time, over any line.
_BODY_SECONDS = 20.0
# A reader that takes nothing for so long has left.
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

ModelT = TypeVar("ModelT", bound=BaseModel)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, kw_only=True)
class Page:
    """What the page's handlers use.

    `names` are the page's host names, `address` is the gRPC server's, `cookie` the name of the
    session's cookie, and `encrypted` says whether the page is served over HTTPS.
    """

    app: App
    info: InfoService
    sessions: Sessions
    attempts: Attempts
    limits: PeerLimits
    names: set[str]
    address: str
    cookie: str
    encrypted: bool


class Body(BaseModel):
    """Base of request bodies; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Nothing(Body):
    """An empty body: `{}`."""


@dataclass(frozen=True)
class PageRequest:
    """An admitted request; `session` is None where signing in is not needed."""

    page: Page
    http: Request
    session: Session | None

    @property
    def own(self) -> Session:
        """The session of the browser that asks."""
        if self.session is None:
            raise ValueError(f"{self.http.url.path} was requested without a session")
        return self.session

    def path(self, name: str) -> str:
        """A parameter of the path."""
        return str(self.http.path_params[name])


def address_of(request: Request) -> str:
    """The network address that a request comes from."""
    return request.client.host if request.client is not None else "somewhere"


def require_json(content_type: str | None) -> None:
    """Refuse a content type that a form of another page can send."""
    if (content_type or "").partition(";")[0].strip().lower() != "application/json":
        raise InvalidRequestError(
            f"the content type is {(content_type or 'not said')[:100]!r}. Send application/json."
        )


async def read_body(request: Request, model: type[ModelT]) -> ModelT:
    """The body of a request, which may be neither too long, too late nor of another form."""
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
    return parse_body(bytes(body), model)


def parse_body(body: bytes, model: type[ModelT]) -> ModelT:
    """The content of a body; InvalidRequestError says where it is wrong."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise InvalidRequestError(f"{where[:200]} cannot be: {first['msg']}.") from None


def as_dict(message: Message) -> dict[str, Any]:
    """A message by the names of all its fields, enums by name."""
    found: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def as_json(value: object) -> bytes:
    """A value of dicts, lists, texts and numbers; numbers that are not finite become texts."""
    return to_json(value, inf_nan_mode="strings")


def answer(
    value: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A value as an answer."""
    return Response(as_json(value), status, headers, media_type="application/json")


def refuse(page: Page, error: Exception, request: Request) -> Response:
    """Count and log an error that ends a request, and answer with the status of its code."""
    client = request.client
    refused = count_refusal(
        page.app.events,
        error,
        method=f"{request.method} {request.url.path[:200]}",
        peer=f"{client.host}:{client.port}" if client is not None else "",
    )
    status = 413 if isinstance(refused, BlobTooLargeError) else _STATUS.get(refused.code, 500)
    after = refused.retry_after_seconds
    headers = {} if after is None else {"Retry-After": str(math.ceil(after))}
    return answer(_error_value(refused), status=status, headers=headers)


class Streaming(StreamingResponse):
    """A stream whose source is closed when it ends, also where its reader takes nothing more."""

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


async def in_lines(
    compute: Callable[[OnProgress], Coroutine[Any, Any, ResultT]],
    show: Callable[[ResultT], Awaitable[dict[str, Any]]],
) -> Response:
    """An answer that streams a computation's progress, then its result as `show` makes it.

    The computation is cancelled when the reader leaves.
    """

    async def progress_and_result() -> AsyncGenerator[dict[str, Any], None]:
        with Answering(compute) as answering:
            while (latest := await answering.next_report()) is not None:
                yield {"progress": asdict(latest)}
            result = answering.result()
        yield await show(result)

    lines = progress_and_result()
    first = await anext(lines)
    return Streaming(_encoded(first, lines), media_type="application/x-ndjson")


async def _encoded(
    first: dict[str, Any], lines: AsyncGenerator[dict[str, Any], None]
) -> AsyncIterator[bytes]:
    async with aclosing(lines):
        yield as_json(first) + b"\n"
        try:
            async for line in lines:
                yield as_json(line) + b"\n"
        except Exception as error:  # noqa: BLE001 - the outermost frame of a stream
            known = error if isinstance(error, LiptError) else None
            shown = known or incident(error, "a stream of the page")
            yield as_json(_error_value(shown)) + b"\n"


def _error_value(error: LiptError) -> dict[str, Any]:
    return {"error": {"reason": error.reason, "message": str(error)}}
