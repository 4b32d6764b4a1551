from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from lipt.common.access.tokens import Token
from lipt.common.errors import InvalidRequestError, from_rpc_error
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.access.tokens import Tokens
from lipt.coordinator.rpc.access import AccessService
from lipt.coordinator.state.database import Database
from lipt.v1 import access_pb2 as pb
from lipt.v1 import access_pb2_grpc
from tests.clock import Clock
from tests.serving import serving


def link_of(caller: Caller) -> tuple[str, float]:
    return f"http://127.0.0.1:50080/sign-in?code={caller.key}", 60.0


@pytest.fixture
async def stub(database: Database, clock: Clock) -> AsyncIterator[Any]:
    """One whose caller is anybody: nobody stands at this entrance."""
    service = AccessService(Tokens(database, Token.draw("admin"), wall_clock=clock), link_of)
    async with (
        serving((access_pb2_grpc.add_AccessServiceServicer_to_server, service)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield access_pb2_grpc.AccessServiceStub(channel)


async def test_token_is_made_listed_and_ended(stub: Any, clock: Clock) -> None:
    clock.now = 1000.0
    request = pb.CreateTokenRequest(role=pb.ROLE_TRAINER, name="ci", days=2.0)
    made = await stub.CreateToken(request)
    token = Token.parse(made.secret)
    assert token is not None
    assert made.token.token_id == token.token_id
    assert (made.token.name, made.token.role) == ("ci", pb.ROLE_TRAINER)
    assert made.token.created_by == "anybody"
    assert (made.token.created_at.seconds, made.token.expires_at.seconds) == (1000, 173_800)
    assert list((await stub.ListTokens(pb.ListTokensRequest())).tokens) == [made.token]
    clock.now = 2000.0
    ended = await stub.RevokeToken(pb.RevokeTokenRequest(token_id=token.token_id))
    assert ended.token.revoked_at.seconds == 2000
    (listed,) = (await stub.ListTokens(pb.ListTokensRequest())).tokens
    assert listed == ended.token
    assert not listed.name.startswith("lipt_")


@pytest.mark.parametrize("role", [0, 9])
async def test_role_that_is_none_is_refused_with_those_that_are(stub: Any, role: int) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.CreateToken(pb.CreateTokenRequest(role=role))  # type: ignore[arg-type]
    error = from_rpc_error(caught.value)
    assert isinstance(error, InvalidRequestError)
    assert "worker, trainer, admin" in str(error)


async def test_caller_is_told_who_it_is(stub: Any) -> None:
    answer = await stub.WhoAmI(pb.WhoAmIRequest())
    assert answer.name == "anybody"
    assert list(answer.roles) == [pb.ROLE_WORKER, pb.ROLE_TRAINER, pb.ROLE_ADMIN]


async def test_link_to_the_page_is_the_callers_and_says_when_it_ends(stub: Any) -> None:
    opened = await stub.OpenPage(pb.OpenPageRequest())
    assert opened.url == "http://127.0.0.1:50080/sign-in?code=anybody"
    assert opened.expires_at.ToSeconds() == 60
