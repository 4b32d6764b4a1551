"""`lipt token`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lipt.common.access.token import Token
from lipt.trainer.cli.commands.token import token_state
from lipt.trainer.views import RoleName, TokenView
from lipt.v1 import access_pb2

CREATED, LATER = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 2, 3, tzinfo=UTC)
VALID = TokenView("0a1b2c3d", "ci", RoleName("trainer"), CREATED, None, None, "me")


@pytest.fixture
def token(fake: Any) -> access_pb2.Token:
    """The only one, at the fake."""
    made = access_pb2.Token(
        token_id="0a1b2c3d", name="ci", role="ROLE_TRAINER", created_by="the coordinator's own user"
    )
    made.created_at.FromDatetime(CREATED)
    fake.tokens = [made]
    return made


def test_new_token_is_all_that_is_printed(fake: Any, lipt: Any, token: access_pb2.Token) -> None:
    result = lipt("token", "create", "--role", "trainer", "--name", "ci", "--days", "30")
    assert result.exit_code == 0, result.output
    assert result.stdout == "the secret\n"
    (request,) = fake.requests_of(access_pb2.CreateTokenRequest)
    assert (request.role, request.name, request.days) == (access_pb2.ROLE_TRAINER, "ci", 30.0)


def test_new_token_as_json_has_its_id_besides(lipt: Any, token: access_pb2.Token) -> None:
    shown = json.loads(lipt("token", "create", "--role", "worker", "--json").stdout)
    assert (shown["token_id"], shown["secret"]) == ("0a1b2c3d", "the secret")


def test_role_that_is_none_is_a_usage_error_with_those_that_are(lipt: Any) -> None:
    result = lipt("token", "create", "--role", "root")
    assert result.exit_code == 2
    assert all(role in result.stderr for role in ("worker", "trainer", "admin"))


def test_tokens_are_listed_in_columns(lipt: Any, token: access_pb2.Token) -> None:
    header, line = lipt("token", "list").stdout.splitlines()
    assert header.split() == ["id", "name", "role", "state", "created", "by"]
    assert line.split()[:5] == ["0a1b2c3d", "ci", "trainer", "valid", "2026-01-02"]
    assert line.endswith("the coordinator's own user")


def test_revoked_token_is_named_with_its_time(
    fake: Any, lipt: Any, token: access_pb2.Token
) -> None:
    token.revoked_at.FromDatetime(LATER)
    result = lipt("token", "revoke", "0a1b2c3d")
    assert result.stdout == "0a1b2c3d (ci) is revoked since 2026-02-03 00:00 UTC\n"
    (request,) = fake.requests_of(access_pb2.RevokeTokenRequest)
    assert request.token_id == "0a1b2c3d"


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
    fake: Any, lipt: Any, tmp_path: Path
) -> None:
    one, other = Token.draw("one").text, Token.draw("other").text
    file = tmp_path / "token"
    file.write_text(one)
    assert lipt("token", "list", "--token-file", str(file)).exit_code == 0
    assert lipt("token", "list", env={"LIPT_TOKEN_FILE": str(file)}).exit_code == 0
    assert lipt("token", "list", env={"LIPT_TOKEN": other}).exit_code == 0
    # What was typed is meant.
    assert (
        lipt("token", "list", "--token-file", str(file), env={"LIPT_TOKEN": other}).exit_code == 0
    )
    assert fake.authorizations == [f"Bearer {text}" for text in (one, one, other, one)]


def test_no_flag_takes_the_token_itself(lipt: Any) -> None:
    result = lipt("token", "list", "--token", Token.draw("one").text)
    assert result.exit_code == 2
    assert "No such option" in result.stderr
