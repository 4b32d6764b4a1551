from __future__ import annotations

from pathlib import Path

import pytest

from lipt.common.access.roles import Role
from lipt.common.errors import ConfigError, StateError, TooManyCallsError, UnauthenticatedError
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.page.sessions import FILE, SESSION_SECONDS, Attempts, Sessions
from tests.clock import Clock

TRAINER = Caller("token:0a1b", "the token 0a1b", frozenset({Role.TRAINER}))
CERTIFIED = Caller("certificate:ff", "alice", frozenset(Role), "ff", 2e9)


class Shown:
    """What callers have shown; a test takes it away."""

    holds = True


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def sessions(clock: Clock, shown: Shown, tmp_path: Path) -> Sessions:
    return started(clock, shown, tmp_path)


def started(clock: Clock, shown: Shown, state_dir: Path, own_token: str = "own") -> Sessions:
    """Those of a coordinator, as after a restart."""
    sessions = Sessions(own_token, lambda _: shown.holds, state_dir, clock=clock)
    sessions.open_at("https://lipt.example.org")
    return sessions


def require_ended(sessions: Sessions, cookie: str | None) -> None:
    with pytest.raises(UnauthenticatedError):
        sessions.find(cookie)


def code_of(sessions: Sessions) -> str:
    return sessions.link(TRAINER)[0].partition("code=")[2]


@pytest.mark.parametrize("caller", [TRAINER, CERTIFIED])
def test_session_is_its_callers_for_twelve_hours_with_restarts_in_between(
    sessions: Sessions, clock: Clock, shown: Shown, tmp_path: Path, caller: Caller
) -> None:
    cookie = sessions.begin(caller)
    assert sessions.find(cookie).caller == caller
    clock.now += SESSION_SECONDS - 1
    assert started(clock, shown, tmp_path).find(cookie).caller == caller
    clock.now += 1
    with pytest.raises(UnauthenticatedError, match=r"session has ended\. Sign in again: .*lipt"):
        sessions.find(cookie)


@pytest.mark.parametrize("cookie", [None, "", "guessed", "gAAAAA==", "\xff", "\ud800"])
def test_who_shows_no_session_is_nobody(sessions: Sessions, cookie: str | None) -> None:
    require_ended(sessions, cookie)


def test_changed_cookies_and_those_of_another_coordinator_are_refused(
    sessions: Sessions, clock: Clock, shown: Shown, tmp_path: Path
) -> None:
    cookie = sessions.begin(TRAINER)
    middle = len(cookie) // 2
    changed = cookie[:middle] + ("A" if cookie[middle] != "A" else "B") + cookie[middle + 1 :]
    for wrong in (changed, code_of(sessions)):
        require_ended(sessions, wrong)
    with pytest.raises(UnauthenticatedError):
        started(clock, shown, tmp_path, "another token").find(cookie)
    assert "0a1b" not in cookie


def test_session_ends_with_what_it_was_begun_with(sessions: Sessions, shown: Shown) -> None:
    session = sessions.find(cookie := sessions.begin(TRAINER))
    shown.holds = False
    assert not sessions.holds(session)
    require_ended(sessions, cookie)


async def test_signing_out_ends_the_sessions_of_one_caller_for_good(
    sessions: Sessions, clock: Clock, shown: Shown, tmp_path: Path
) -> None:
    left, stayed = sessions.begin(TRAINER), sessions.begin(OWN_USER)
    await sessions.end(sessions.find(left))
    clock.now += 0.01
    for coordinator in (sessions, started(clock, shown, tmp_path)):
        require_ended(coordinator, left)
        assert coordinator.find(stayed).caller == OWN_USER
        assert coordinator.find(coordinator.begin(TRAINER)).caller == TRAINER


async def test_only_sign_outs_of_sessions_that_could_last_are_kept(
    sessions: Sessions, clock: Clock, tmp_path: Path
) -> None:
    for caller in (TRAINER, OWN_USER):
        await sessions.end(sessions.find(sessions.begin(caller)))
        clock.now += SESSION_SECONDS
    assert "own user" in (tmp_path / FILE).read_text()
    assert TRAINER.key not in (tmp_path / FILE).read_text()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"token:0a1b": "x"}'])
async def test_a_damaged_file_of_sign_outs_ends_all_sessions(
    sessions: Sessions, clock: Clock, shown: Shown, tmp_path: Path, content: bytes
) -> None:
    early = sessions.begin(TRAINER)
    (tmp_path / FILE).write_bytes(content)
    again = started(clock, shown, tmp_path)
    require_ended(again, early)
    clock.now += 1
    await again.end(again.find(again.begin(OWN_USER)))
    with pytest.raises(UnauthenticatedError):
        started(clock, shown, tmp_path).find(early)


async def test_a_disk_that_keeps_no_sign_out_is_told_and_the_session_ends(
    sessions: Sessions, tmp_path: Path
) -> None:
    session = sessions.find(sessions.begin(TRAINER))
    (tmp_path / FILE).mkdir()
    with pytest.raises(StateError, match=FILE):
        await sessions.end(session)
    assert not sessions.holds(session)


def test_code_is_taken_once_within_a_minute(sessions: Sessions, clock: Clock) -> None:
    early, late = code_of(sessions), code_of(sessions)
    clock.now += 59
    assert sessions.take_code(early) == TRAINER
    with pytest.raises(UnauthenticatedError, match="was used"):
        sessions.take_code(early)
    clock.now += 1
    with pytest.raises(UnauthenticatedError, match="older than 60 s"):
        sessions.take_code(late)


def test_one_caller_pushes_out_its_own_oldest_codes(sessions: Sessions) -> None:
    other = sessions.link(OWN_USER)[0].partition("code=")[2]
    codes = [code_of(sessions) for _ in range(17)]
    with pytest.raises(UnauthenticatedError):
        sessions.take_code(codes[0])
    assert [sessions.take_code(code) for code in codes[1:]] == [TRAINER] * 16
    assert sessions.take_code(other) == OWN_USER


def test_link_says_when_it_ends_and_needs_a_page(
    clock: Clock, shown: Shown, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"serves no page\. Start it with --dashboard-listen"):
        Sessions("own", lambda _: True, tmp_path, clock=clock).link(OWN_USER)
    link, ends_at = started(clock, shown, tmp_path).link(OWN_USER)
    assert link.startswith("https://lipt.example.org/sign-in?code=")
    assert ends_at == clock.now + 60


def test_ten_may_fail_at_once_and_then_one_every_two_seconds(clock: Clock) -> None:
    attempts = Attempts(clock=clock)
    for _ in range(10):
        attempts.require_room("192.0.2.1")
        attempts.note_failure("192.0.2.1")
    with pytest.raises(TooManyCallsError, match="Try again in 2 s") as caught:
        attempts.require_room("192.0.2.1")
    assert caught.value.retry_after_seconds == 2.0
    attempts.require_room("192.0.2.2")
    clock.now += 2.0
    attempts.require_room("192.0.2.1")
