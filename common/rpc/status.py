"""Status: errors as `google.rpc.Status`, and back as text for people."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from lipt.common.access.local_token import METADATA_KEY, find_local_token
from lipt.common.access.tokens import TokenSource
from lipt.common.errors import (
    DOMAIN,
    InvalidRequestError,
    LiptError,
    TooManyCallsError,
    UnreachableError,
    error_class,
    revive,
)
from lipt.common.observability.logs import EventKind, Events
from lipt.common.rpc.handlers import (
    Context,
    behaviour_of,
    is_of_the_contract,
    with_behaviour,
    within,
)
from lipt.common.rpc.messages import require_lengths
from lipt.common.text import printable

logger = logging.getLogger(__name__)

# A status travels as metadata, twice, a byte as up to three; peers refuse 8 KiB and more of it.
_MAX_MESSAGE_BYTES = 1500


def to_status(error: LiptError) -> status_pb2.Status:
    """The status that carries an error's code, sentence and reason."""
    details = [_packed(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN))]
    if error.retry_after_seconds is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(1000 * error.retry_after_seconds))
        details.append(_packed(retry))
    return status_pb2.Status(
        code=code_pb2.Code.Value(error.code.name), message=_shortened(str(error)), details=details
    )


def _packed(message: Message) -> any_pb2.Any:
    detail = any_pb2.Any()
    detail.Pack(message)
    return detail


def _shortened(sentence: str) -> str:
    content = sentence.encode(errors="replace")
    if len(content) > _MAX_MESSAGE_BYTES:
        half = _MAX_MESSAGE_BYTES // 2
        content = content[:half] + b" ... " + content[-half:]
    return content.decode(errors="ignore")


def from_rpc_error(error: grpc.RpcError) -> LiptError:
    """The error that the server raised.

    Other statuses become `UnreachableError` or a plain `LiptError`.
    """
    call = cast("grpc.Call", error)
    # Whoever shows an error shows what its peer wrote.
    code, details = call.code(), printable(call.details() or "")
    status = _rich_status(call)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for packed in status.details if status else ():
        # Whichever of the two it is.
        _ = packed.Unpack(info) or packed.Unpack(retry)
    if info.domain == DOMAIN:
        after = retry.retry_delay.ToMilliseconds() / 1000
        return revive(error_class(info.reason), details, after or None)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return UnreachableError(f"the coordinator does not answer ({details}).")
    return LiptError(f"{code.name if code else 'UNKNOWN'}: {details}")


def _rich_status(call: grpc.Call) -> status_pb2.Status | None:
    try:
        return cast("status_pb2.Status | None", rpc_status.from_call(call))
    except ValueError:  # details that contradict the code: not ours
        return None


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Maps what a servicer raises to a status; an unforeseen error gets an incident number."""

    def __init__(self, events: Events | None = None) -> None:
        self._events = events or Events()

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
        guarded = within(
            _read_requests(behaviour_of(handler), handler),
            lambda context: errors_as_status(context, method, self._events),
            streams_responses=handler.response_streaming,
        )
        return with_behaviour(
            handler, guarded, deserializer=_deserializer(handler.request_deserializer)
        )


@dataclass(frozen=True)
class _Malformed:
    why: str


def _deserializer(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    # gRPC would answer UNKNOWN to what a deserializer raises, and log it as a fault of ours.
    def parsed(content: bytes) -> Any:
        try:
            return parse(content)
        except DecodeError as error:
            return _Malformed(str(error))

    return parsed


def _read_requests(behaviour: Any, handler: Any) -> Any:
    if handler.request_streaming:
        return lambda requests, context: behaviour(_all_well_formed(requests), context)
    return lambda request, context: behaviour(_well_formed(request), context)


async def _all_well_formed(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _well_formed(request)


def _well_formed(request: Any) -> Any:
    if isinstance(request, _Malformed):
        raise InvalidRequestError(
            f"the request cannot be read: {request.why}. "
            "Send the message of the contract in proto/lipt/v1; both sides need the same major."
        )
    require_lengths(request)
    return request


@asynccontextmanager
async def errors_as_status(context: Context, method: str, events: Events) -> AsyncIterator[None]:
    """End the call with the status of what the block raises, and count it in `events`."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except Exception as error:  # noqa: BLE001 - the outermost frame of a call
        await _abort(context, error, method, events)


async def _abort(context: Context, error: Exception, method: str, events: Events) -> None:
    if isinstance(error, NotImplementedError):  # a generated base class: an older version
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} is not served here.")
    refused = count_refusal(events, error, method=method, peer=context.peer())
    await context.abort_with_status(rpc_status.to_status(to_status(refused)))


def count_refusal(events: Events, error: Exception, *, method: str, peer: str) -> LiptError:
    """Count and log an error that ends a call, and give it as its caller may see it."""
    refused = error if isinstance(error, LiptError) else incident(error, method)
    # Counted every time; whoever is too fast for the service is not to fill its log.
    level = logging.DEBUG if isinstance(refused, TooManyCallsError) else logging.INFO
    events.record(
        EventKind.CALL_REFUSED,
        detail=refused.reason,
        level=level,
        method=method,
        peer=peer,
        reason=str(refused),
    )
    return refused


def incident(error: Exception, where: str) -> LiptError:
    """An unforeseen exception as a caller may see it: a number. The log has the exception."""
    number = uuid.uuid4().hex[:8]
    logger.error("incident %s in %s", number, where, exc_info=error)
    return LiptError(f"internal error; the coordinator's log has it as incident {number}.")


Entries = Callable[[], tuple[tuple[str, str], ...]]


def local_credentials(port: int) -> grpc.ChannelCredentials:
    """The local token for a loopback port, read whenever a connection is made.

    A call that waits for a coordinator to start finds the token that came with it.
    """
    return grpc.composite_channel_credentials(
        grpc.local_channel_credentials(grpc.LocalConnectionType.LOCAL_TCP),
        grpc.metadata_call_credentials(_LocalToken(port)),
    )


def showing(token: TokenSource | None, channel: grpc.Channel) -> grpc.Channel:
    """The channel, whose calls show this token; as it is where there is none."""
    if token is None:
        return channel
    return with_metadata(channel, lambda: (("authorization", f"Bearer {token.read()}"),))


def with_metadata(channel: grpc.Channel, entries: Entries) -> grpc.Channel:
    """The channel, each of whose calls has what `entries` says then in its metadata, too."""

    def intercept(continuation: Callable[..., Any], details: Any, requests: Any) -> Any:
        return continuation(with_entries(details, entries()), requests)

    return grpc.intercept_channel(channel, EveryCall(intercept))


class _LocalToken(grpc.AuthMetadataPlugin):
    def __init__(self, port: int) -> None:
        self._port = port

    def __call__(
        self,
        context: grpc.AuthMetadataContext,  # noqa: ARG002 - gRPC's signature
        callback: grpc.AuthMetadataPluginCallback,
    ) -> None:
        token = find_local_token(self._port)
        callback(((METADATA_KEY, token),) if token else (), None)


class Details(NamedTuple):
    """`grpc.ClientCallDetails`, which has no constructor."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


def with_entries(details: Any, entries: Iterable[tuple[str, str]]) -> Details:
    """A call's details with more metadata."""
    return Details(
        details.method,
        details.timeout,
        (*(details.metadata or ()), *entries),
        details.credentials,
        details.wait_for_ready,
        details.compression,
    )


class EveryCall(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Intercepts a channel's calls of every kind with one function.

    `intercept` takes what continues the call, the call's details, and its request or requests.
    """

    def __init__(self, intercept: Callable[[Callable[..., Any], Any, Any], Any]) -> None:
        self._intercept = intercept

    def _call(self, continuation: Callable[..., Any], details: Any, requests: Any) -> Any:
        return self._intercept(continuation, details, requests)

    intercept_unary_unary: Any = _call
    intercept_unary_stream: Any = _call
    intercept_stream_unary: Any = _call
    intercept_stream_stream: Any = _call
