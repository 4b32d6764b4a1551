from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lipt.common.states import RunState
from lipt.trainer.report.dates import dates_of, duration
from tests.trainer.made_up import made_up_run

BEGAN = datetime(2026, 3, 1, 9, 30, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (185, "3 min 5 s"), (7800, "2 h 10 min")],
)
def test_a_duration_has_two_units_at_most(seconds: float, expected: str) -> None:
    assert duration(timedelta(seconds=seconds)) == expected


def test_dates_that_nobody_knows_are_left_out() -> None:
    assert dates_of(made_up_run(), None) == ()
    (began,) = dates_of(made_up_run(created_at=BEGAN), None)
    assert (began.what, began.text, began.after) == ("started", "2026-03-01 09:30 UTC", "")


def test_the_end_is_called_by_the_state_of_the_run() -> None:
    run = made_up_run(
        state=RunState.CANCELLED, created_at=BEGAN, ended_at=BEGAN + timedelta(minutes=1)
    )
    _, ended = dates_of(run, None)
    assert (ended.what, ended.after) == ("cancelled", " after 1 min 0 s")
    assert ended.iso == "2026-03-01T09:31:15+00:00"
