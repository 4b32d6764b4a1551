"""Health check: `python -m lipt.common.rpc.health_check` exits with 0 if a coordinator serves.

It queries gRPC's standard health service at LIPT_HEALTH_LISTEN or LIPT_LISTEN, without PyTorch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_DEFAULT = "127.0.0.1:50051"
_SECONDS = 4.0
# Address to query for a wildcard address.
_ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - not listened on here


def address_to_ask(environment: Mapping[str, str]) -> str:
    listen = environment.get("LIPT_HEALTH_LISTEN") or environment.get("LIPT_LISTEN") or _DEFAULT
    host, _, port = listen.rpartition(":")
    return f"{_ANY.get(host, host)}:{port}"


def main() -> str | None:
    """None if it serves; else its answer, printed with exit status 1."""
    address = address_to_ask(os.environ)
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS)
        except grpc.RpcError as error:
            return f"{address}: {error.code().name}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return f"{address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"


if __name__ == "__main__":
    sys.exit(main())
