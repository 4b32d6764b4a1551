import logging

from lipt.common.backoff import RetryLevels
from lipt.common.errors import UnauthenticatedError, UnreachableError
from tests.clock import Clock

AWAY, REFUSED = UnreachableError("away."), UnauthenticatedError("who?")
WARNING, DEBUG = logging.WARNING, logging.DEBUG


def test_a_kind_of_error_is_a_warning_at_first_and_once_a_minute() -> None:
    clock = Clock()
    levels = RetryLevels(clock=clock)
    seen = []
    for second in range(121):
        clock.now = float(second)
        seen.append(levels.level(AWAY))
    assert [second for second, level in enumerate(seen) if level == WARNING] == [0, 60, 120]
    # Another kind has another remedy. Errors that alternate are no news.
    assert [levels.level(error) for error in (REFUSED, AWAY, REFUSED)] == [WARNING, DEBUG, DEBUG]


def test_a_success_ends_an_outage_once() -> None:
    levels = RetryLevels(clock=Clock())
    assert not levels.recover()
    levels.level(AWAY)
    assert levels.recover()
    assert not levels.recover()
    assert levels.level(AWAY) == WARNING
