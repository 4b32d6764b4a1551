from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lipt.common.access.tokens import Token
from lipt.common.errors import ConfigError, PermissionDeniedError, UnauthenticatedError
from lipt.trainer.client.client import Client
from lipt.trainer.views import RoleName
from lipt.v1 import access_pb2
from tests.relay import Relay, change

TRAINER, ADMIN = RoleName("trainer"), RoleName("admin")


def test_caller_is_told_its_name_and_roles(client: Client) -> None:
    caller = client.access.who_am_i()
    assert (caller.name, caller.roles) == ("the coordinator's own user", (ADMIN,))


def test_token_lets_its_holder_in_until_it_is_revoked(relay: Relay, client: Client) -> None:
    given = client.access.create_token("trainer", name="ci", days=30)
    assert given.secret not in repr(given)
    token = given.token
    assert (token.name, token.role, token.created_by) == (
        "ci",
        TRAINER,
        "the coordinator's own user",
    )
    assert token.created_at is not None
    assert token.expires_at == token.created_at + timedelta(days=30)
    assert (token.revoked_at, token in client.access.tokens()) == (None, True)
    with Client(relay.address, token=given.secret) as holder:
        caller = holder.access.who_am_i()
        assert caller.roles == (TRAINER,)
        assert token.token_id in caller.name
        with pytest.raises(PermissionDeniedError):
            holder.access.tokens()
        revoked = client.access.revoke_token(token.token_id)
        assert revoked.revoked_at is not None
        assert datetime.now(UTC) - revoked.revoked_at < timedelta(minutes=5)
        with pytest.raises(UnauthenticatedError):
            holder.access.who_am_i()


def test_role_of_a_newer_coordinator_does_not_hide_the_others(relay: Relay, client: Client) -> None:
    newer = access_pb2.Token.FromString(b"\x18\x09")
    assert newer.role not in access_pb2.Role.values()
    client.access.create_token("worker")
    relay.next("ListTokens", change(lambda answer: answer.tokens.append(newer)))
    roles = [item.role for item in client.access.tokens()]
    assert "worker" in roles[:-1]
    assert roles[-1] == "9"


def test_client_shows_its_token_and_a_renewed_one(
    relay: Relay, client: Client, tmp_path: Path
) -> None:
    one, other = (client.access.create_token("trainer").secret for _ in range(2))
    relay.calls.clear()
    with Client(relay.address, token=one) as holder:
        holder.access.who_am_i()
    file = tmp_path / "token"
    file.write_text(one)
    with Client(relay.address, token_file=str(file)) as holder:
        holder.access.who_am_i()
        file.write_text(other)
        holder.access.who_am_i()
    shown = [call.authorization for call in relay.calls]
    assert shown == [f"Bearer {one}", f"Bearer {one}", f"Bearer {other}"]


def test_token_that_the_coordinator_did_not_give_is_refused(relay: Relay) -> None:
    made_up = Token.draw("0a1b2c3d").text
    with Client(relay.address, token=made_up) as client, pytest.raises(UnauthenticatedError):
        client.access.who_am_i()


def test_what_is_no_token_is_refused_before_anything_is_sent(relay: Relay, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no token"):
        Client(relay.address, token="secret")
    with pytest.raises(ConfigError, match="cannot be read"):
        Client(relay.address, token_file=tmp_path / "none")
    assert relay.calls == []
