"""Health check: `python -m lipt.common.rpc.health_check` exits with 0 if a coordinator serves.

It queries gRPC's standard health service at LIPT_HEALTH_LISTEN or LIPT_LISTEN, without PyTorch.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_DEFAULT = "127.0.0.1:50051"
_SECONDS = 4.0


def main() -> str | None:
    """None if it serves; else its answer, printed with exit status 1."""
    # Linux takes a wildcard address for this machine.
    listen = map(os.environ.get, ("LIPT_HEALTH_LISTEN", "LIPT_LISTEN"))
    address = next(filter(None, listen), _DEFAULT)
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
