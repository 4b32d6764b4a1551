"""Showing: every call of a worker shows its secret, as metadata, in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from lipt.common.access.worker_secret import WORKER_SECRET


def showing(channel: grpc.Channel, secret: Callable[[], str]) -> grpc.Channel:
    """The channel, on which each call shows what `secret` says then; nothing while it is empty."""
    return grpc.intercept_channel(channel, _Showing(secret))


class _Showing(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
):
    def __init__(self, secret: Callable[[], str]) -> None:
        self._secret = secret

    def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_secret(client_call_details), request)

    def intercept_unary_stream(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_secret(client_call_details), request)

    def intercept_stream_unary(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return continuation(self._with_secret(client_call_details), request_iterator)

    def _with_secret(self, details: Any) -> Any:
        secret = self._secret()
        if not secret:
            return details
        return details._replace(metadata=(*(details.metadata or ()), (WORKER_SECRET, secret)))
