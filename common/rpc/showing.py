"""Showing: how a client's calls carry its token, and what else they prove themselves with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc

from lipt.common.access.local_token import METADATA_KEY, find_local_token
from lipt.common.access.token_source import TokenSource

Entries = Callable[[], tuple[tuple[str, str], ...]]


def local_credentials(port: int) -> grpc.ChannelCredentials:
    """For a connection in the clear to a loopback port: the local token, wherever there is one.

    gRPC asks for it once a connection stands, and again when it repeats the call: a call that
    waits for a coordinator to come up finds the token that was not there when it was made.
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
    return grpc.intercept_channel(channel, _WithMetadata(entries))


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


class _WithMetadata(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Gives every call of a channel what `entries` says then, over whatever it goes."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    def intercept_unary_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request: Any
    ) -> Any:
        """A call with the metadata."""
        return continuation(self._shown(client_call_details), request)

    intercept_unary_stream = intercept_unary_unary

    def intercept_stream_unary(
        self, continuation: Callable[..., Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        """As a call of a single request."""
        return continuation(self._shown(client_call_details), request_iterator)

    intercept_stream_stream = intercept_stream_unary

    def _shown(self, details: Any) -> Details:
        return Details(
            details.method,
            details.timeout,
            (*(details.metadata or ()), *self._entries()),
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
