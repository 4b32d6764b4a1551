"""Servicers on a real port, with the coordinator's way of answering errors."""

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from lipt.common.access.local import LocalTarget
from lipt.common.observability.logs import Events
from lipt.coordinator.rpc.handlers import Interceptor, Step, refusals


@asynccontextmanager
async def serving(
    *servicers: tuple[Callable[[Any, Any], None], Any], steps: Sequence[Step] = ()
) -> AsyncIterator[str]:
    every = (refusals(Events()), *steps)
    server = grpc.aio.server(interceptors=[Interceptor(lambda _: every)])
    for add, servicer in servicers:
        add(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@asynccontextmanager
async def answering(
    answer: Callable[..., Awaitable[bytes]], credentials: grpc.ServerCredentials
) -> AsyncIterator[str]:
    """A method /s/m alone, over TLS."""
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"m": handler}),))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


def own_user_channel(address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
    own = ("grpc.primary_user_agent", f"lipt-{uuid.uuid4().hex}")
    return grpc.aio.insecure_channel(LocalTarget(address).current(), options=(*options, own))
