"""Channels to the coordinator: idle time-outs, renewed certificates, tokens, retries, traces."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, Self, TypeVar

import grpc
from opentelemetry.trace import SpanKind

from lipt.common.access.local import LocalTarget
from lipt.common.access.tls import Renewal, TlsContents, TlsFiles, is_loopback, split_address
from lipt.common.access.tokens import TokenSource
from lipt.common.errors import from_rpc_error
from lipt.common.observability.tracing import (
    CALL_STATUS,
    TRACEPARENT,
    begin_call,
    current_traceparent,
    is_tracing,
)
from lipt.common.rpc.messages import is_spanless
from lipt.v1 import info_pb2, run_pb2, subset_pb2, worker_pb2

logger = logging.getLogger(__name__)

MessageT = TypeVar("MessageT")
ContentsT = TypeVar("ContentsT")

# gRPC retries for some seconds what is not the caller's fault: a coordinator that is away, or that
# drops calls of all callers in a flood. `AccessService` is excluded, because a repeated
# request makes a second token. Streams are excluded, because their readers resume them. A retried
# stream could also hang, ignoring cancellation, after its coordinator was killed.
_RETRIED = tuple(
    {"service": service.full_name, "method": method.name}
    for module in (info_pb2, run_pb2, subset_pb2, worker_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if not (method.client_streaming or method.server_streaming)
)
_RETRY_POLICY = {
    "maxAttempts": 5,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
}
_SERVICE_CONFIG = {"methodConfig": [{"name": _RETRIED, "retryPolicy": _RETRY_POLICY}]}

_OPTIONS = (
    ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
    ("grpc.enable_retries", 1),
    # Detects a silently lost peer within 40 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Finds a starting coordinator within seconds.
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A web proxy cannot reach loopback and cluster addresses.
    ("grpc.enable_http_proxy", 0),
)


def open_channel(
    address: str, tls: TlsFiles | None = None, token: TokenSource | None = None
) -> grpc.Channel:
    """A channel to `host:port` that connects on first use, with TLS renewal, token and tracing."""
    host, _ = split_address(address)
    channel: Any
    if tls is not None:

        def connect(pem: TlsContents) -> grpc.Channel:
            credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
            return grpc.secure_channel(address, credentials, options=_OPTIONS)

        channel = RenewingChannel(Renewal(tls).current, connect)
    elif token is None and is_loopback(host):
        # Over the coordinator's local socket, if there is one.
        # The name tells a user's channels apart: they have no port of their own.
        own = ("grpc.primary_user_agent", f"lipt-{uuid.uuid4().hex}")
        insecure = partial(grpc.insecure_channel, options=(*_OPTIONS, own))
        channel = RenewingChannel(LocalTarget(address).current, insecure)
    else:
        if token is not None and not is_loopback(host):
            logger.warning("the token goes to %s in the clear. Give --tls-ca.", address)
        channel = grpc.insecure_channel(address, options=_OPTIONS)
    if token is not None:
        channel = with_metadata(channel, lambda: (("authorization", f"Bearer {token.read()}"),))
    return grpc.intercept_channel(channel, _EveryCall(_call_in_trace)) if is_tracing() else channel


def with_metadata(
    channel: grpc.Channel, entries: Callable[[], tuple[tuple[str, str], ...]]
) -> grpc.Channel:
    """The channel, with `entries()` in the metadata of each call."""
    every = _EveryCall(lambda go_on, details, request: go_on(_with(details, *entries()), request))
    return grpc.intercept_channel(channel, every)


def _call_in_trace(continuation: Callable[..., Any], details: Any, requests: Any) -> Any:
    if is_spanless(details.method):
        traceparent = current_traceparent()
        return continuation(_with(details, (TRACEPARENT, traceparent)), requests)
    span = begin_call(details.method, SpanKind.CLIENT)
    call = continuation(_with(details, (TRACEPARENT, span.traceparent)), requests)

    def end(ended: Any) -> None:
        code = ended.code() or grpc.StatusCode.UNKNOWN
        span.begun.set_attribute(CALL_STATUS, code.value[0])
        # Closing a stream early is no failure.
        if code not in {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED}:
            span.fail(code.name)
        span.begun.end()

    call.add_done_callback(end)
    return call


def _with(details: Any, *entries: tuple[str, str]) -> Any:
    given = tuple(entry for entry in entries if entry[1])
    return details._replace(metadata=(*(details.metadata or ()), *given))


class _EveryCall(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    def __init__(self, intercept: Callable[[Callable[..., Any], Any, Any], Any]) -> None:
        self._intercept = intercept

    def _call(self, continuation: Callable[..., Any], details: Any, requests: Any) -> Any:
        return self._intercept(continuation, details, requests)

    intercept_unary_unary: Any = _call
    intercept_unary_stream: Any = _call
    intercept_stream_unary: Any = _call
    intercept_stream_stream: Any = _call


class IdleWatchdog:
    """Cancels a call and sets `expired` when one wait exceeds `idle_seconds`."""

    def __init__(self, idle_seconds: float) -> None:
        self.expired = False
        self._idle_seconds = idle_seconds
        self._deadline: float | None = None
        self._over = threading.Event()

    @contextmanager
    def over(self, call: Any) -> Iterator[None]:
        """Watch a call during the block, then cancel it."""
        self.wait_begins()
        thread = threading.Thread(target=self._watch, args=[call], name="lipt-idle", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()
            call.cancel()

    def messages(self, call: Iterable[MessageT]) -> Iterator[MessageT]:
        """The call's messages; the caller's time between them is not counted."""
        for message in call:
            self._deadline = None
            yield message
            self.wait_begins()

    def wait_begins(self) -> None:
        self._deadline = time.monotonic() + self._idle_seconds

    def _watch(self, call: Any) -> None:
        left: float = self._idle_seconds
        while not self._over.wait(left):
            deadline = self._deadline
            left = self._idle_seconds if deadline is None else deadline - time.monotonic()
            if left <= 0:
                self.expired = True
                call.cancel()
                return


class LongPoll:
    """Long-polling calls that a signal handler can end."""

    def __init__(self) -> None:
        self._call: Any = None
        self._interrupted = False

    def answered(self, start: Callable[[], Any]) -> Any:
        """The answered call that `start` makes; None after `interrupt`."""
        if self._interrupted:
            return None
        call = self._call = start()
        # A signal may have arrived during `start`.
        if self._interrupted:
            call.cancel()
        try:
            call.result()
        except grpc.FutureCancelledError:
            return None
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        finally:
            self._call = None
        return call

    def interrupt(self) -> None:
        self._interrupted = True
        if (call := self._call) is not None:
            call.cancel()


class RenewingChannel(Generic[ContentsT]):
    """A channel that is replaced when its TLS files, which gRPC reads once, or its socket change.

    New calls use a new connection after a change. Earlier calls keep the previous one, which is
    closed at the next change.
    """

    def __init__(
        self, current: Callable[[], ContentsT], connect: Callable[[ContentsT], grpc.Channel]
    ) -> None:
        self._current, self._connect = current, connect
        self._lock = threading.Lock()
        self._contents = current()
        self._newest = connect(self._contents)
        self._previous: grpc.Channel | None = None
        self._closed = False

    def method_of(
        self, before: tuple[grpc.Channel, Any] | None, make: Callable[[grpc.Channel], Any]
    ) -> tuple[grpc.Channel, Any]:
        """The channel for the next call, and a method of it: that of `before`, or a new one."""
        contents, outdated = self._current(), None
        with self._lock:
            if contents != self._contents and not self._closed:
                outdated, self._previous = self._previous, self._newest
                self._contents, self._newest = contents, self._connect(contents)
            if before is None or before[0] is not self._newest:
                # On a closed channel gRPC would crash here.
                if self._closed:
                    raise ValueError("Cannot invoke RPC on closed channel!")
                before = self._newest, make(self._newest)
        if outdated is not None:
            outdated.close()
        return before

    def __getattr__(self, kind: str) -> Any:
        if kind not in {"unary_unary", "unary_stream", "stream_unary", "stream_stream"}:
            raise AttributeError(kind)
        return lambda *given, **options: _Method(
            self, lambda channel: getattr(channel, kind)(*given, **options)
        )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for channel in filter(None, (self._previous, self._newest)):
                channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Method:
    def __init__(self, channel: RenewingChannel[Any], make: Callable[[grpc.Channel], Any]) -> None:
        self._channel, self._make = channel, make
        self._made: tuple[grpc.Channel, Any] | None = None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._newest()(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        # `future`, and `with_call` for interceptors.
        return getattr(self._newest(), name)

    def _newest(self) -> Any:
        self._made = made = self._channel.method_of(self._made, self._make)
        return made[1]
