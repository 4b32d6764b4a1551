from __future__ import annotations

import asyncio
import logging
import stat
from itertools import count
from pathlib import Path

import pytest

from lipt.common.access.roles import Role
from lipt.common.errors import ConfigError, TooManyCallsError, UnauthenticatedError
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.page.sessions import (
    FILE,
    SESSION_SECONDS,
    Attempts,
    Sessions,
    draw_secret,
)
from tests.clock import Clock

TRAINER = Caller("token:0a1b", "the token 0a1b", frozenset({Role.TRAINER}))


class Shown:
    """What callers have shown; a test takes it away."""

    def __init__(self) -> None:
        self.holds = True


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def sessions(clock: Clock, shown: Shown) -> Sessions:
    numbers = count()
    return Sessions(lambda _: shown.holds, clock=clock, draw=lambda: f"secret {next(numbers)}")


def code_of(sessions: Sessions) -> str:
    sessions.open_at("http://localhost")
    return sessions.link(TRAINER)[0].partition("code=")[2]


async def test_session_is_its_callers_for_twelve_hours(sessions: Sessions, clock: Clock) -> None:
    secret = await sessions.begin(TRAINER)
    assert sessions.find(secret).caller == TRAINER
    clock.now += 12 * 3600 - 1
    assert sessions.find(secret).caller == TRAINER
    clock.now += 1
    with pytest.raises(UnauthenticatedError, match=r"session has ended\. Sign in again: .*lipt"):
        sessions.find(secret)


@pytest.mark.parametrize("secret", [None, "", "secret", "secret 1"])
async def test_who_shows_no_secret_of_a_session_is_nobody(
    sessions: Sessions, secret: str | None
) -> None:
    await sessions.begin(TRAINER)
    with pytest.raises(UnauthenticatedError):
        sessions.find(secret)


async def test_session_ends_for_good_with_what_it_was_begun_with(
    sessions: Sessions, shown: Shown
) -> None:
    secret = await sessions.begin(TRAINER)
    session = sessions.find(secret)
    shown.holds = False
    assert not sessions.holds(session)
    shown.holds = True
    with pytest.raises(UnauthenticatedError):
        sessions.find(secret)


def test_code_is_taken_once(sessions: Sessions) -> None:
    code = code_of(sessions)
    assert sessions.take_code(code) == TRAINER
    with pytest.raises(UnauthenticatedError, match="was used"):
        sessions.take_code(code)


def test_code_holds_for_a_minute(sessions: Sessions, clock: Clock) -> None:
    early, late = code_of(sessions), code_of(sessions)
    clock.now += 59
    assert sessions.take_code(early) == TRAINER
    clock.now += 1
    with pytest.raises(UnauthenticatedError, match="older than 60 s"):
        sessions.take_code(late)


async def test_one_caller_pushes_out_its_own_oldest_sessions(sessions: Sessions) -> None:
    other = await sessions.begin(OWN_USER)
    secrets = [await sessions.begin(TRAINER) for _ in range(17)]
    with pytest.raises(UnauthenticatedError):
        sessions.find(secrets[0])
    assert all(sessions.find(secret) for secret in (other, *secrets[1:]))


async def test_no_secret_is_kept_or_drawn_twice(clock: Clock) -> None:
    kept = Sessions(lambda _: True, clock=clock)
    secret = await kept.begin(TRAINER)
    assert secret not in repr(vars(kept))
    assert secret not in repr(kept.find(secret))
    assert len({draw_secret() for _ in range(100)}) == 100
    assert len(draw_secret()) >= 43  # 32 bytes in base64


def test_link_has_a_code_of_the_caller_and_ends_in_a_minute(clock: Clock) -> None:
    sessions = Sessions(lambda _: True, clock=clock)
    with pytest.raises(ConfigError, match=r"serves no page\. Start it with --dashboard-listen"):
        sessions.link(OWN_USER)
    sessions.open_at("https://lipt.example.org")
    link, ends_at = sessions.link(OWN_USER)
    before, _, code = link.partition("code=")
    assert before == "https://lipt.example.org/sign-in?"
    assert ends_at == clock.now + 60
    assert sessions.take_code(code) == OWN_USER


CERTIFIED = Caller("certificate:ff", "alice", frozenset(Role), "ff", 2e9)


def started(folder: Path, clock: Clock) -> Sessions:
    return Sessions(lambda _: True, clock=clock, state_dir=folder)


@pytest.mark.parametrize("caller", [TRAINER, CERTIFIED])
async def test_session_goes_on_after_a_restart(
    tmp_path: Path, clock: Clock, caller: Caller
) -> None:
    secret = await started(tmp_path, clock).begin(caller)
    clock.now += SESSION_SECONDS - 1
    assert started(tmp_path, clock).find(secret).caller == caller
    clock.now += 1
    with pytest.raises(UnauthenticatedError):
        started(tmp_path, clock).find(secret)


async def test_who_signed_out_stays_out_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    sessions = started(tmp_path, clock)
    left, stayed = await sessions.begin(TRAINER), await sessions.begin(CERTIFIED)
    await sessions.end(sessions.find(left))
    after = started(tmp_path, clock)
    with pytest.raises(UnauthenticatedError):
        after.find(left)
    assert after.find(stayed).caller == CERTIFIED


async def test_file_is_its_users_alone_and_holds_no_secret(tmp_path: Path, clock: Clock) -> None:
    secret = await started(tmp_path, clock).begin(TRAINER)
    file = tmp_path / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret not in file.read_text()


@pytest.mark.parametrize("content", ["", "{}", '[{"key": 1}]', '[{"roles": ["root"]}]'])
async def test_a_damaged_file_signs_everybody_out(
    tmp_path: Path, clock: Clock, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_text(content)
    with caplog.at_level(logging.WARNING):
        sessions = started(tmp_path, clock)
    assert "browsers have to sign in again" in caplog.text
    assert sessions.find(await sessions.begin(TRAINER)).caller == TRAINER


async def test_sessions_that_begin_at_once_are_all_in_the_file(
    tmp_path: Path, clock: Clock
) -> None:
    sessions = started(tmp_path, clock)
    secrets = await asyncio.gather(*(sessions.begin(TRAINER) for _ in range(8)))
    after = started(tmp_path, clock)
    assert all(after.find(secret) for secret in secrets)


def test_ten_may_fail_at_once_and_then_one_every_two_seconds(clock: Clock) -> None:
    attempts = Attempts(clock=clock)
    for _ in range(10):
        attempts.require_room("192.0.2.1")
        attempts.note_failure("192.0.2.1")
    with pytest.raises(TooManyCallsError, match="Try again in 2 s") as caught:
        attempts.require_room("192.0.2.1")
    assert caught.value.retry_after_seconds == 2.0
    clock.now += 2.0
    attempts.require_room("192.0.2.1")
    attempts.note_failure("192.0.2.1")
    with pytest.raises(TooManyCallsError):
        attempts.require_room("192.0.2.1")
