from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from lipt.common.access.roles import Role
from lipt.common.errors import UnauthenticatedError
from lipt.coordinator.access.caller import Caller
from lipt.coordinator.page.session_file import FILE, SessionFile
from lipt.coordinator.page.sessions import SESSION_SECONDS, Sessions
from tests.clock import Clock

TRAINER = Caller("token:0a1b", "the token 0a1b", frozenset({Role.TRAINER}))
CERTIFIED = Caller("certificate:ff", "alice", frozenset(Role), "ff", 2e9)


def started(folder: Path, clock: Clock) -> Sessions:
    return Sessions(lambda _: True, clock=clock, file=SessionFile(folder))


@pytest.mark.parametrize("caller", [TRAINER, CERTIFIED])
def test_session_goes_on_after_a_restart(tmp_path: Path, clock: Clock, caller: Caller) -> None:
    secret = started(tmp_path, clock).begin(caller)
    clock.now += SESSION_SECONDS - 1
    assert started(tmp_path, clock).find(secret).caller == caller
    clock.now += 1
    with pytest.raises(UnauthenticatedError):
        started(tmp_path, clock).find(secret)


def test_who_signed_out_stays_out_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    sessions = started(tmp_path, clock)
    left, stayed = sessions.begin(TRAINER), sessions.begin(CERTIFIED)
    sessions.end(sessions.find(left))
    after = started(tmp_path, clock)
    with pytest.raises(UnauthenticatedError):
        after.find(left)
    assert after.find(stayed).caller == CERTIFIED


def test_codes_end_with_the_process(tmp_path: Path, clock: Clock) -> None:
    code = started(tmp_path, clock).give_code(TRAINER)
    with pytest.raises(UnauthenticatedError):
        started(tmp_path, clock).take_code(code)


def test_file_is_its_users_alone_and_holds_no_secret(tmp_path: Path, clock: Clock) -> None:
    secret = started(tmp_path, clock).begin(TRAINER)
    file = tmp_path / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret not in file.read_text()


@pytest.mark.parametrize("content", ["", "{}", '[{"key": 1}]', '[{"roles": ["root"]}]'])
def test_a_damaged_file_signs_everybody_out(
    tmp_path: Path, clock: Clock, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_text(content)
    with caplog.at_level(logging.WARNING):
        sessions = started(tmp_path, clock)
    assert "browsers have to sign in again" in caplog.text
    assert sessions.find(sessions.begin(TRAINER)).caller == TRAINER


def test_a_file_that_cannot_be_written_keeps_nobody_out(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = Sessions(lambda _: True, clock=clock, file=SessionFile(tmp_path / "missing"))
    assert sessions.find(sessions.begin(TRAINER)).caller == TRAINER
    assert "cannot be written" in caplog.text
