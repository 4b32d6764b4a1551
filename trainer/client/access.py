"""Access: who the coordinator takes a client for, and the tokens that it gives out."""

from __future__ import annotations

from lipt.common.access.roles import Role
from lipt.common.rpc.messages import enum_to_proto
from lipt.trainer.client.connection import Connection
from lipt.trainer.client.conversion import view_of
from lipt.trainer.views import CallerView, GivenTokenView, PageLinkView, TokenView
from lipt.v1 import access_pb2


class Access:
    """The calls about access; those about tokens take an admin.

    Raises:
        PermissionDeniedError: in every call but `who_am_i`: the caller has not the role.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def who_am_i(self) -> CallerView:
        """Who calls, as the coordinator sees it, and its roles.

        Raises:
            NotACoordinatorError: the coordinator is of a version that asks nobody.
        """
        request = access_pb2.WhoAmIRequest()
        return view_of(CallerView, self._connection.unary(lambda of: of.access.WhoAmI, request))

    def open_page(self) -> PageLinkView:
        """A link to the coordinator's page; takes a trainer or an admin.

        Raises:
            ConfigError: the coordinator serves no page.
            NotACoordinatorError: it is of a version that has none.
        """
        request = access_pb2.OpenPageRequest()
        answer = self._connection.unary(lambda of: of.access.OpenPage, request)
        return view_of(PageLinkView, answer)

    def create_token(self, role: str, *, name: str = "", days: float = 0.0) -> GivenTokenView:
        """Give out a token; its text is in the answer, and is never said again.

        Args:
            role: "worker", "trainer" or "admin".
            name: what it is listed under.
            days: how long it holds; 0 until it is revoked.

        Raises:
            InvalidRequestError: `days` is out of range.
        """
        request = access_pb2.CreateTokenRequest(
            role=enum_to_proto(access_pb2.Role.DESCRIPTOR, Role(role)), name=name, days=days
        )
        answer = self._connection.unary(lambda of: of.access.CreateToken, request)
        return view_of(GivenTokenView, answer)

    def tokens(self) -> list[TokenView]:
        """All that were given out, oldest first."""
        request = access_pb2.ListTokensRequest()
        answer = self._connection.unary(lambda of: of.access.ListTokens, request)
        return [view_of(TokenView, token) for token in answer.tokens]

    def revoke_token(self, token_id: str) -> TokenView:
        """End a token, from the next call that shows it on.

        Raises:
            UnknownTokenError: none has that id.
        """
        request = access_pb2.RevokeTokenRequest(token_id=token_id)
        answer = self._connection.unary(lambda of: of.access.RevokeToken, request)
        return view_of(TokenView, answer.token)
