"""Binding: a gRPC server at an address of this machine, or a refusal that names the flag."""

from __future__ import annotations

import grpc
import grpc.aio

from lipt.common.errors import ConfigError
from lipt.common.network.tls import split_address


def bind(
    server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None, *, flag: str
) -> str:
    """Have `server` listen there once it is started; the address, with the port that was found.

    Args:
        server: has not been started.
        listen: host:port; port 0 takes a free one.
        credentials: TLS, or None to serve without.
        flag: what gave the address, for errors.

    Raises:
        ConfigError: it is no address, or cannot be listened on.
    """
    host, _ = split_address(listen)
    try:
        port = (
            server.add_insecure_port(listen)
            if credentials is None
            else server.add_secure_port(listen, credentials)
        )
    except RuntimeError:
        raise ConfigError(
            f"{flag} {listen}: the address is in use, or is not this machine's. Choose another."
        ) from None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
