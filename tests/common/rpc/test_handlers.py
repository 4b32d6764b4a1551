from __future__ import annotations

from typing import Any, cast

import grpc
import pytest

from lipt.common.rpc.handlers import Interceptor

METHOD = "/lipt.v1.InfoService/GetInfo"


class Services:
    """Those of one method; counts how often its handler was made."""

    num_made = 0

    async def find(self, details: grpc.HandlerCallDetails) -> Any:
        self.num_made += 1
        return object() if details.method == METHOD else None


@pytest.mark.parametrize(("method", "num_made"), [(METHOD, 1), ("/lipt.v1.InfoService/No", 3)])
async def test_handlers_are_made_once_and_names_of_none_are_not_kept(
    method: str, num_made: int
) -> None:
    unknown, services = list[None](), Services()
    interceptor = Interceptor(lambda _: (), on_unknown=lambda: unknown.append(None))
    details = cast("grpc.HandlerCallDetails", type("Details", (), {"method": method}))
    found = {await interceptor.intercept_service(services.find, details) for _ in range(3)}
    assert len(found) == 1
    assert services.num_made == num_made
    assert len(interceptor._handlers) + len(unknown) // 3 == 1
