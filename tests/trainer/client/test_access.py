from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from lipt.common.access.token import Token
from lipt.common.errors import ConfigError, PermissionDeniedError
from lipt.trainer.client.client import Client
from lipt.trainer.views import CallerView, RoleName, TokenView
from lipt.v1 import access_pb2

TRAINER = RoleName("trainer")


def token(**fields: Any) -> access_pb2.Token:
    made = access_pb2.Token(
        token_id="0a1b2c3d", name="ci", role="ROLE_TRAINER", created_by="me", **fields
    )
    made.created_at.FromDatetime(datetime(2026, 1, 2, tzinfo=UTC))
    return made


def test_caller_is_told_its_name_and_roles(client: Client) -> None:
    assert client.access.who_am_i() == CallerView("the token 0a1b2c3d", (TRAINER,))


def test_token_that_is_made_comes_with_its_text_once(fake: Any, client: Client) -> None:
    fake.tokens = [token()]
    given = client.access.create_token("trainer", name="ci", days=30)
    assert given.secret == "the secret"
    assert "the secret" not in repr(given)
    assert given.token == TokenView(
        token_id="0a1b2c3d",
        name="ci",
        role=TRAINER,
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
        expires_at=None,
        revoked_at=None,
        created_by="me",
    )
    (request,) = fake.requests_of(access_pb2.CreateTokenRequest)
    assert (request.role, request.name, request.days) == (access_pb2.ROLE_TRAINER, "ci", 30.0)


def test_role_of_a_newer_coordinator_does_not_hide_the_others(fake: Any, client: Client) -> None:
    newer = access_pb2.Token.FromString(b"\x18\x09")
    assert newer.role not in access_pb2.Role.values()
    fake.tokens = [newer, token()]
    assert [item.role for item in client.access.tokens()] == ["9", "trainer"]


def test_token_is_revoked_by_its_id(fake: Any, client: Client) -> None:
    fake.tokens = [token()]
    fake.tokens[0].revoked_at.FromDatetime(datetime(2026, 1, 3, tzinfo=UTC))
    revoked = client.access.revoke_token("0a1b2c3d")
    assert revoked.revoked_at == datetime(2026, 1, 3, tzinfo=UTC)
    (request,) = fake.requests_of(access_pb2.RevokeTokenRequest)
    assert request.token_id == "0a1b2c3d"


def test_refusal_is_raised_as_its_own_class(fake: Any, client: Client, refusal: Any) -> None:
    fake.refusal = refusal(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "no admin")
    with pytest.raises(PermissionDeniedError, match="no admin"):
        client.access.tokens()


def test_client_shows_its_token_and_a_renewed_one(fake: Any, tmp_path: Path) -> None:
    one, other = Token.draw("one").text, Token.draw("other").text
    with Client(fake.address, token=one) as client:
        client.access.who_am_i()
    file = tmp_path / "token"
    file.write_text(one)
    with Client(fake.address, token_file=str(file)) as client:
        client.access.who_am_i()
        file.write_text(other)
        client.access.who_am_i()
    assert fake.authorizations == [f"Bearer {one}", f"Bearer {one}", f"Bearer {other}"]


def test_what_is_no_token_is_refused_before_anything_is_sent(fake: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no token"):
        Client(fake.address, token="secret")
    with pytest.raises(ConfigError, match="cannot be read"):
        Client(fake.address, token_file=tmp_path / "none")
    assert fake.requests == []
