"""`lipt token`."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lipt.common.access.tokens import Token
from lipt.trainer.cli.commands.token import token_state
from lipt.trainer.client.client import Client
from lipt.trainer.views import RoleName, TokenView
from lipt.v1 import access_pb2
from tests.relay import Relay

CREATED, LATER = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 2, 3, tzinfo=UTC)
VALID = TokenView("0a1b2c3d", "ci", RoleName("trainer"), CREATED, None, None, "me")


@pytest.fixture
def token(client: Client) -> TokenView:
    """One of the coordinator's."""
    return client.access.create_token("trainer", name="ci").token


def test_new_token_is_all_that_is_printed(relay: Relay, lipt: Any) -> None:
    result = lipt("token", "create", "--role", "trainer", "--name", "ci", "--days", "30")
    assert result.exit_code == 0, result.output
    (request,) = relay.requests_of(access_pb2.CreateTokenRequest)
    assert (request.role, request.name, request.days) == (access_pb2.ROLE_TRAINER, "ci", 30.0)
    with Client(relay.address, token=result.stdout.removesuffix("\n")) as holder:
        assert holder.access.who_am_i().roles == ("trainer",)


def test_new_token_as_json_has_its_id_besides(relay: Relay, lipt: Any) -> None:
    shown = json.loads(lipt("token", "create", "--role", "worker", "--json").stdout)
    with Client(relay.address, token=shown["secret"]) as holder:
        assert shown["token_id"] in holder.access.who_am_i().name


def test_role_that_is_none_is_a_usage_error_with_those_that_are(lipt: Any) -> None:
    result = lipt("token", "create", "--role", "root")
    assert result.exit_code == 2
    assert all(role in result.stderr for role in ("worker", "trainer", "admin"))


def test_tokens_are_listed_in_columns(lipt: Any, token: TokenView) -> None:
    header, *lines = lipt("token", "list").stdout.splitlines()
    assert header.split() == ["id", "name", "role", "state", "created", "by"]
    assert token.created_at is not None
    (line,) = (line for line in lines if line.startswith(token.token_id))
    created = f"{token.created_at.astimezone():%Y-%m-%d}"
    assert line.split()[:5] == [token.token_id, "ci", "trainer", "valid", created]
    assert line.endswith("the coordinator's own user")


def test_revoked_token_is_named_with_its_time(lipt: Any, token: TokenView) -> None:
    revoked = lipt("token", "revoke", token.token_id).stdout
    assert re.fullmatch(rf"{token.token_id} \(ci\) is revoked since \S+ \S+ \S+\n", revoked)
    (line,) = (line for line in lipt("token", "list").stdout.splitlines() if token.token_id in line)
    assert "revoked" in line


@pytest.mark.parametrize(
    ("expires_at", "revoked_at", "now", "words"),
    [
        (None, None, LATER, "valid"),
        (LATER, None, CREATED, "valid until 2026-02-03"),
        (LATER, None, LATER, "expired 2026-02-03"),
        (LATER, CREATED, LATER, "revoked 2026-01-02"),
    ],
)
def test_state_of_a_token_is_said_in_words(
    expires_at: datetime | None, revoked_at: datetime | None, now: datetime, words: str
) -> None:
    shown = TokenView(
        **{**vars(VALID), "expires_at": expires_at, "revoked_at": revoked_at}  # type: ignore[arg-type]
    )
    assert token_state(shown, now) == words


def test_token_is_shown_that_the_file_or_the_environment_has(
    relay: Relay, client: Client, lipt: Any, tmp_path: Path
) -> None:
    one, other = (client.access.create_token("admin").secret for _ in range(2))
    relay.calls.clear()
    file = tmp_path / "token"
    file.write_text(one)
    assert lipt("token", "list", "--token-file", str(file)).exit_code == 0
    assert lipt("token", "list", env={"LIPT_TOKEN_FILE": str(file)}).exit_code == 0
    assert lipt("token", "list", env={"LIPT_TOKEN": other}).exit_code == 0
    # What was typed is meant.
    assert (
        lipt("token", "list", "--token-file", str(file), env={"LIPT_TOKEN": other}).exit_code == 0
    )
    shown = [call.authorization for call in relay.calls]
    assert shown == [f"Bearer {text}" for text in (one, one, other, one)]


def test_no_flag_takes_the_token_itself(lipt: Any) -> None:
    result = lipt("token", "list", "--token", Token.draw("one").text)
    assert result.exit_code == 2
    assert "No such option" in result.stderr
