from __future__ import annotations

from itertools import count

import pytest

from lipt.common.access.roles import Role
from lipt.common.errors import UnauthenticatedError
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.access.tokens import OWN_USER
from lipt.coordinator.page.sessions import Kept, Sessions, draw_secret
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


def test_session_is_its_callers_for_twelve_hours(sessions: Sessions, clock: Clock) -> None:
    secret = sessions.begin(TRAINER)
    assert sessions.find(secret).caller == TRAINER
    clock.now += 12 * 3600 - 1
    assert sessions.find(secret).caller == TRAINER
    clock.now += 1
    with pytest.raises(UnauthenticatedError, match=r"session has ended\. Sign in again: .*lipt"):
        sessions.find(secret)


@pytest.mark.parametrize("secret", [None, "", "secret", "secret 1"])
def test_who_shows_no_secret_of_a_session_is_nobody(sessions: Sessions, secret: str | None) -> None:
    sessions.begin(TRAINER)
    with pytest.raises(UnauthenticatedError):
        sessions.find(secret)


def test_signing_out_ends_that_session_alone(sessions: Sessions) -> None:
    first, second = sessions.begin(TRAINER), sessions.begin(TRAINER)
    sessions.end(sessions.find(first))
    with pytest.raises(UnauthenticatedError):
        sessions.find(first)
    assert sessions.find(second).caller == TRAINER


def test_session_ends_for_good_with_what_it_was_begun_with(
    sessions: Sessions, shown: Shown
) -> None:
    secret = sessions.begin(TRAINER)
    session = sessions.find(secret)
    shown.holds = False
    assert not sessions.holds(session)
    shown.holds = True
    with pytest.raises(UnauthenticatedError):
        sessions.find(secret)


def test_code_is_taken_once(sessions: Sessions) -> None:
    code = sessions.give_code(TRAINER)
    assert sessions.take_code(code) == TRAINER
    with pytest.raises(UnauthenticatedError, match="was used"):
        sessions.take_code(code)


def test_code_holds_for_a_minute(sessions: Sessions, clock: Clock) -> None:
    early, late = sessions.give_code(TRAINER), sessions.give_code(TRAINER)
    clock.now += 59
    assert sessions.take_code(early) == TRAINER
    clock.now += 1
    with pytest.raises(UnauthenticatedError, match="older than 60 s"):
        sessions.take_code(late)


def test_code_is_no_session_and_a_session_no_code(sessions: Sessions) -> None:
    code, secret = sessions.give_code(TRAINER), sessions.begin(TRAINER)
    with pytest.raises(UnauthenticatedError):
        sessions.find(code)
    with pytest.raises(UnauthenticatedError):
        sessions.take_code(secret)


def test_one_caller_pushes_out_its_own_oldest_sessions(sessions: Sessions) -> None:
    other = sessions.begin(OWN_USER)
    secrets = [sessions.begin(TRAINER) for _ in range(17)]
    with pytest.raises(UnauthenticatedError):
        sessions.find(secrets[0])
    assert all(sessions.find(secret) for secret in (other, *secrets[1:]))


def test_of_very_many_the_oldest_goes(clock: Clock) -> None:
    kept = Kept(10.0, clock=clock)
    secrets = [kept.begin(Caller(str(n), str(n), frozenset()))[0] for n in range(1001)]
    assert kept.find(secrets[0]) is None
    assert kept.find(secrets[1]) is not None


def test_no_secret_is_kept_or_drawn_twice(clock: Clock) -> None:
    kept = Kept(10.0, clock=clock)
    secret, session = kept.begin(TRAINER)
    assert secret not in repr(vars(kept))
    assert secret not in repr(session)
    assert len({draw_secret() for _ in range(100)}) == 100
    assert len(draw_secret()) >= 43  # 32 bytes in base64


def test_own_users_pages_take_turns_beside_its_other_calls(sessions: Sessions) -> None:
    assert sessions.find(sessions.begin(TRAINER)).peer == TRAINER.key
    assert sessions.find(sessions.begin(OWN_USER)).peer == "page of own user"
