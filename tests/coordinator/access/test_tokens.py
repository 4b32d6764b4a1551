from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.access.roles import Role
from lipt.common.access.tokens import Token
from lipt.common.errors import (
    InvalidRequestError,
    StateError,
    UnauthenticatedError,
    UnknownTokenError,
)
from lipt.coordinator.access import tokens
from lipt.coordinator.access.caller import ANYBODY, Caller
from lipt.coordinator.access.tokens import OWN_FILE, OWN_USER, Tokens, keep_own_token
from lipt.coordinator.state.database import Database
from tests.clock import Clock

DAY = 86_400.0


async def given(
    tokens: Tokens, role: Role = Role.WORKER, *, name: str = "", days: float = 0.0
) -> str:
    return (await tokens.create(role, name=name, days=days, created_by="a test"))[1]


async def test_holder_of_a_token_is_called_by_it_and_has_its_role(tokens: Tokens) -> None:
    record, text = await tokens.create(Role.TRAINER, name="ci", days=0.0, created_by="a test")
    caller = tokens.caller(text)
    assert caller.key == f"token:{record.token_id}"
    assert caller.name == f"the token {record.token_id} (ci)"
    assert caller.roles == {Role.TRAINER}
    assert caller.certificate == ""


async def test_own_token_makes_an_admin_that_is_not_listed(tokens: Tokens, own: Token) -> None:
    assert tokens.caller(own.text) is OWN_USER
    assert OWN_USER.roles == {Role.ADMIN}
    assert tokens.listed() == ()
    with pytest.raises(UnknownTokenError, match="no token 'admin'"):
        await tokens.revoke("admin")


async def test_only_a_digest_is_kept(tokens: Tokens, database: Database) -> None:
    text = await given(tokens)
    (record,) = await database.load_tokens()
    assert record.sha256 == Token(record.token_id, text).sha256
    secret = text.rpartition("_")[2]
    assert secret not in record.model_dump_json()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "x" * 1000,
        lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"),
        lambda text: Token.draw(text.split("_")[1]).text,
        lambda text: Token.draw("ffffffff").text,
        lambda text: Token.draw("admin").text,
    ],
)
async def test_token_of_nobody_is_refused_with_how_to_get_one(
    tokens: Tokens, change: Callable[[str], str]
) -> None:
    shown = change(await given(tokens))
    with pytest.raises(
        UnauthenticatedError, match=r"none of this coordinator's\. .*lipt token create --role"
    ):
        tokens.caller(shown)


async def test_revoked_token_is_refused_at_once_and_over_restarts(
    tokens: Tokens, database: Database, own: Token, clock: Clock
) -> None:
    text = await given(tokens, name="ci")
    (record,) = tokens.listed()
    clock.now = DAY
    assert (await tokens.revoke(record.token_id)).revoked_at == DAY
    again = Tokens(database, own, wall_clock=clock)
    await again.load()
    for held in (tokens, again):
        with pytest.raises(UnauthenticatedError, match=r"\(ci\) was revoked on 1970-01-02 00:00"):
            held.caller(text)
    clock.now = 2 * DAY
    assert (await tokens.revoke(record.token_id)).revoked_at == DAY


async def test_revoked_token_has_ended_though_the_disk_is_full_and_is_written_when_asked_again(
    tokens: Tokens, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: object) -> None:
        raise StateError("the disk is full.")

    text = await given(tokens)
    (record,) = tokens.listed()
    with monkeypatch.context() as full:
        full.setattr(database, "save_token", refuse)
        with pytest.raises(StateError):
            await tokens.revoke(record.token_id)
        with pytest.raises(UnauthenticatedError, match="was revoked"):
            tokens.caller(text)
        with pytest.raises(StateError):
            await given(tokens)
    assert len(tokens.listed()) == 1
    revoked = await tokens.revoke(record.token_id)
    assert await database.load_tokens() == (revoked,)


async def test_token_holds_for_its_days_and_not_a_moment_longer(
    tokens: Tokens, clock: Clock
) -> None:
    clock.now = 0.0
    text = await given(tokens, days=1.5)
    clock.now = 1.5 * DAY - 0.001
    assert tokens.caller(text).roles == {Role.WORKER}
    clock.now = 1.5 * DAY
    with pytest.raises(UnauthenticatedError, match="has expired on 1970-01-02 12:00 UTC"):
        tokens.caller(text)


@pytest.mark.parametrize("days", [-1.0, float("nan"), float("inf"), 1e9])
async def test_days_that_are_none_are_refused(tokens: Tokens, days: float) -> None:
    with pytest.raises(InvalidRequestError, match=r"cannot hold for .* days\. Give 0 < days"):
        await given(tokens, days=days)
    assert tokens.listed() == ()


async def test_id_that_is_none_is_refused_with_where_they_are_listed(tokens: Tokens) -> None:
    with pytest.raises(UnknownTokenError, match=r"'abc'\. lipt token list"):
        await tokens.revoke("abc")


async def test_tokens_are_listed_oldest_first(
    tokens: Tokens, database: Database, own: Token, clock: Clock
) -> None:
    for name in ("a", "b", "c"):
        clock.now += 1.0
        await given(tokens, name=name)
    again = Tokens(database, own, wall_clock=clock)
    await again.load()
    assert [record.name for record in again.listed()] == ["a", "b", "c"]
    assert again.listed() == tokens.listed()


async def test_what_a_caller_has_shown_counts_for_as_long_as_it_holds(
    tokens: Tokens, clock: Clock
) -> None:
    lasts = tokens.caller(await given(tokens))
    ends = tokens.caller(await given(tokens, days=1.0))
    certified = Caller("certificate:ab", "a certificate", frozenset(), expires_at=clock.now + 10)
    assert all(map(tokens.holds, (lasts, ends, certified, OWN_USER, ANYBODY)))
    clock.now += 86_400
    assert list(map(tokens.holds, (lasts, ends, certified))) == [True, False, False]
    await tokens.revoke(lasts.key.removeprefix("token:"))
    assert not tokens.holds(lasts)
    assert not tokens.holds(Caller("token:gone", "none", frozenset()))


def test_token_stays_the_same_and_is_its_user_s_alone(tmp_path: Path) -> None:
    token = keep_own_token(tmp_path)
    assert token.token_id == "admin"
    assert keep_own_token(tmp_path) == token
    assert (tmp_path / OWN_FILE).read_text() == f"{token.text}\n"
    assert (tmp_path / OWN_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [OWN_FILE]


def test_another_is_made_where_it_was_deleted(tmp_path: Path) -> None:
    token = keep_own_token(tmp_path)
    (tmp_path / OWN_FILE).unlink()
    assert keep_own_token(tmp_path) != token


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", f"lipt_other_{64 * '0'}".encode()])
def test_file_that_holds_no_own_token_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / OWN_FILE).write_bytes(content)
    token = keep_own_token(tmp_path)
    assert (tmp_path / OWN_FILE).read_text() == f"{token.text}\n"


def test_full_disk_costs_no_more_than_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tokens, "write_all", refuse)
    token = keep_own_token(tmp_path)
    assert token.token_id == "admin"
    assert "admin.token cannot be written: No space left" in caplog.text
    assert token.text not in caplog.text
    assert list(tmp_path.iterdir()) == []
