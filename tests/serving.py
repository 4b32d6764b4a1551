"""Servicers on a real port, with the coordinator's way of answering errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from lipt.common.rpc.status import ErrorInterceptor


@asynccontextmanager
async def serving(*servicers: tuple[Callable[[Any, Any], None], Any]) -> AsyncIterator[str]:
    """Serve until the block ends.

    Args:
        servicers: each with the generated function that adds its kind to a server.

    Yields:
        The address.
    """
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    for add, servicer in servicers:
        add(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)
