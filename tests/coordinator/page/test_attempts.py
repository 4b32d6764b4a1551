from __future__ import annotations

import pytest

from lipt.common.errors import TooManyCallsError
from lipt.coordinator.page.attempts import Attempts
from tests.clock import Clock


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


def test_others_are_not_slowed_down_and_who_succeeds_is_not_counted(clock: Clock) -> None:
    attempts = Attempts(clock=clock)
    for _ in range(20):
        attempts.require_room("192.0.2.2")
        attempts.note_failure("192.0.2.1")
    attempts.require_room("192.0.2.2")
