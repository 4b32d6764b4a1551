"""`lipt.v1.AccessService`: tokens, and the identity of a caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio

from lipt.common.access import Role
from lipt.common.errors import InvalidRequestError
from lipt.common.rpc.messages import enum_to_proto, enum_value
from lipt.coordinator.access.caller import Caller, current_caller
from lipt.coordinator.access.tokens import Tokens
from lipt.coordinator.rpc.messages import message_of, timestamp
from lipt.v1 import access_pb2 as pb
from lipt.v1 import access_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]
# A link that signs a browser in as a caller, and its expiry (wall clock).
PageLink = Callable[[Caller], tuple[str, float]]


@dataclass(eq=False)
class AccessService(access_pb2_grpc.AccessServiceServicer):
    """Tokens for admins, and the identity of a caller."""

    tokens: Tokens
    link: PageLink

    async def CreateToken(
        self, request: pb.CreateTokenRequest, context: Context
    ) -> pb.CreateTokenResponse:
        record, secret = await self.tokens.create(
            _role(request.role),
            name=request.name,
            days=request.days,
            created_by=current_caller().name,
            scores=request.scores,
        )
        return pb.CreateTokenResponse(token=message_of(pb.Token, record), secret=secret)

    async def ListTokens(
        self, request: pb.ListTokensRequest, context: Context
    ) -> pb.ListTokensResponse:
        return pb.ListTokensResponse(
            tokens=[message_of(pb.Token, one) for one in self.tokens.listed()]
        )

    async def RevokeToken(
        self, request: pb.RevokeTokenRequest, context: Context
    ) -> pb.RevokeTokenResponse:
        record = await self.tokens.revoke(request.token_id)
        return pb.RevokeTokenResponse(token=message_of(pb.Token, record))

    async def WhoAmI(self, request: pb.WhoAmIRequest, context: Context) -> pb.WhoAmIResponse:
        caller = current_caller()
        roles = [enum_to_proto(pb.Role.DESCRIPTOR, role) for role in Role if role in caller.roles]
        return pb.WhoAmIResponse(name=caller.name, roles=roles)

    async def OpenPage(self, request: pb.OpenPageRequest, context: Context) -> pb.OpenPageResponse:
        url, expires_at = self.link(current_caller())
        return pb.OpenPageResponse(url=url, expires_at=timestamp(expires_at))


def _role(number: int) -> Role:
    try:
        return Role(enum_value(pb.Role.DESCRIPTOR, number))
    except ValueError:
        raise InvalidRequestError(
            f"a token needs one of the roles {', '.join(Role)}. Set `role` to one of them."
        ) from None
