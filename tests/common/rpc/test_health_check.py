import asyncio
import subprocess
import sys

import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from lipt.common.rpc.health_check import address_to_ask, main
from tests.serving import serving


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, "127.0.0.1:50051"),
        ({"LIPT_LISTEN": "0.0.0.0:7"}, "127.0.0.1:7"),
        ({"LIPT_LISTEN": "[::]:7"}, "[::1]:7"),
        ({"LIPT_LISTEN": "head:7", "LIPT_HEALTH_LISTEN": "127.0.0.1:8"}, "127.0.0.1:8"),
    ],
)
def test_it_is_asked_where_it_listens(environment: dict[str, str], address: str) -> None:
    assert address_to_ask(environment) == address


async def test_status_is_whether_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = health.aio.HealthServicer()
    async with serving((health_pb2_grpc.add_HealthServicer_to_server, healthy)) as address:
        monkeypatch.setenv("LIPT_HEALTH_LISTEN", address)
        assert await asyncio.to_thread(main) is None
        await healthy.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert await asyncio.to_thread(main) == f"{address}: NOT_SERVING"
    assert await asyncio.to_thread(main) == f"{address}: UNAVAILABLE"


def test_it_is_light() -> None:
    code = "import sys, lipt.common.rpc.health_check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
