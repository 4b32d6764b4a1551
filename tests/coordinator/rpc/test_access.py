from __future__ import annotations

from typing import Any, cast

import pytest

from lipt.common.access.tokens import Token
from lipt.common.errors import InvalidRequestError
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.access.tokens import Tokens
from lipt.coordinator.rpc.access import AccessService
from lipt.coordinator.state.database import Database
from lipt.v1 import access_pb2 as pb
from tests.clock import Clock

# Nobody stands at this entrance, so that the caller is anybody.
CONTEXT = cast("Any", None)


def link_of(caller: Caller) -> tuple[str, float]:
    return f"http://127.0.0.1:50080/sign-in?code={caller.key}", 60.0


@pytest.fixture
async def service(database: Database, clock: Clock) -> AccessService:
    return AccessService(Tokens(database, Token.draw("admin"), wall_clock=clock), link_of)


async def test_token_is_made_listed_and_ended(service: AccessService, clock: Clock) -> None:
    clock.now = 1000.0
    request = pb.CreateTokenRequest(role=pb.ROLE_TRAINER, name="ci", days=2.0)
    made = await service.CreateToken(request, CONTEXT)
    token = Token.parse(made.secret)
    assert token is not None
    assert made.token.token_id == token.token_id
    assert (made.token.name, made.token.role) == ("ci", pb.ROLE_TRAINER)
    assert made.token.created_by == "anybody"
    assert (made.token.created_at.seconds, made.token.expires_at.seconds) == (1000, 173_800)
    listing = pb.ListTokensRequest()
    assert list((await service.ListTokens(listing, CONTEXT)).tokens) == [made.token]
    clock.now = 2000.0
    revoking = pb.RevokeTokenRequest(token_id=token.token_id)
    ended = await service.RevokeToken(revoking, CONTEXT)
    assert ended.token.revoked_at.seconds == 2000
    assert list((await service.ListTokens(listing, CONTEXT)).tokens) == [ended.token]


@pytest.mark.parametrize("role", [0, 9])
async def test_role_that_is_none_is_refused_with_those_that_are(
    service: AccessService, role: Any
) -> None:
    with pytest.raises(InvalidRequestError, match="worker, trainer, admin"):
        await service.CreateToken(pb.CreateTokenRequest(role=role), CONTEXT)


async def test_caller_is_told_who_it_is_and_where_its_page_is(service: AccessService) -> None:
    answer = await service.WhoAmI(pb.WhoAmIRequest(), CONTEXT)
    assert answer.name == "anybody"
    assert list(answer.roles) == [pb.ROLE_WORKER, pb.ROLE_TRAINER, pb.ROLE_ADMIN]
    opened = await service.OpenPage(pb.OpenPageRequest(), CONTEXT)
    assert opened.url == "http://127.0.0.1:50080/sign-in?code=anybody"
    assert opened.expires_at.ToSeconds() == 60
