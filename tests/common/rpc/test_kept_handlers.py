from __future__ import annotations

from typing import Any, cast

import grpc

from lipt.common.rpc.handlers import KeptHandlers


class Services:
    """Those of one method; counts how often its handler was made."""

    def __init__(self) -> None:
        self.num_made = 0

    async def find(self, details: grpc.HandlerCallDetails) -> Any:
        self.num_made += 1
        return object() if details.method == "/lipt.v1.InfoService/GetInfo" else None


class Details:
    def __init__(self, method: str) -> None:
        self.method = method


async def handler_of(kept: KeptHandlers, services: Services, method: str) -> Any:
    details = cast("grpc.HandlerCallDetails", Details(method))
    return await kept.intercept_service(services.find, details)


async def test_handler_of_a_method_is_made_once() -> None:
    kept, services = KeptHandlers(), Services()
    method = "/lipt.v1.InfoService/GetInfo"
    first = await handler_of(kept, services, method)
    assert first is await handler_of(kept, services, method)
    assert services.num_made == 1


async def test_method_that_is_not_there_takes_no_memory() -> None:
    kept, services = KeptHandlers(), Services()
    for number in range(3):
        assert await handler_of(kept, services, f"/lipt.v1.InfoService/No{number}") is None
    assert services.num_made == 3
    assert kept._handlers == {}
