"""What is left of a stage, by what was seen of it; seconds are made up, and sums by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lipt.common.states import LearnerState, RunState
from lipt.trainer.cli.display.pace import Pace, in_words
from lipt.trainer.views import LearnerView, ProgressView, RunView
from tests.trainer.made_up import made_up_learner, made_up_run

START = datetime(2026, 1, 1, tzinfo=UTC)


def merging(done: int, total: int = 91, **changes: Any) -> RunView:
    progress = ProgressView("merging learners", done, total)
    return made_up_run(state=RunState.MERGING, progress=progress, **changes)


def leased(index: int, step: int, attempts: int = 1) -> LearnerView:
    return made_up_learner(index, state=LearnerState.LEASED, step=step, attempts=attempts)


def done(index: int, seconds: float) -> LearnerView:
    return made_up_learner(
        index,
        state=LearnerState.DONE,
        leased_at=START,
        committed_at=START + timedelta(seconds=seconds),
    )


def training(*learners: LearnerView) -> RunView:
    """K is 5."""
    return made_up_run(learners=learners)


def seen(*observations: tuple[float, RunView]) -> Pace:
    pace = Pace()
    for now, run in observations:
        pace.observe(run, now)
    return pace


def test_a_stage_goes_on_as_fast_as_it_went() -> None:
    # 20 evaluations in 10 s: the 70 that are left take 35 s.
    assert seen((100.0, merging(1)), (110.0, merging(21))).seconds_left(110.0) == 35.0


def test_time_goes_by_between_two_reports() -> None:
    # 20 in 14 s by now.
    assert seen((100.0, merging(1)), (110.0, merging(21))).seconds_left(114.0) == 49.0


@pytest.mark.parametrize(
    "run",
    [
        merging(0, total=0),
        merging(5),  # nothing has moved since
        made_up_run(state=RunState.READY),
        made_up_run(state=RunState.MERGING, progress=None),
        made_up_run(
            state=RunState.MERGING, progress=ProgressView("waiting for its turn", 0, 9, ahead=2)
        ),
    ],
)
def test_nothing_is_guessed_where_nothing_tells(run: RunView) -> None:
    pace = seen((100.0, merging(5)), (200.0, run))
    assert pace.seconds_left(300.0) is None
    assert pace.words(300.0) == ""


def test_another_stage_begins_anew() -> None:
    first = made_up_run(state=RunState.INITIALIZING, progress=ProgressView("reading", 9, 10))
    pace = seen((0.0, first), (50.0, merging(0, 14)), (60.0, merging(7, 14)))
    assert pace.seconds_left(60.0) == 10.0


def test_queued_learners_are_dealt_to_those_workers_that_have_one() -> None:
    # Learners take 40 s. At 130 s learner 1 has made 4 of 5 steps in 20 s: 5 s left; learner 2
    # 1 of 5: 80 s. Two more on the first: 5 + 40 + 40 = 85.
    before = training(done(0, 40), leased(1, 0), leased(2, 0), *map(made_up_learner, (3, 4)))
    after = training(done(0, 40), leased(1, 4), leased(2, 1), *map(made_up_learner, (3, 4)))
    assert seen((110.0, before), (130.0, after)).seconds_left(130.0) == 85.0


def test_a_learner_that_is_not_heard_of_takes_as_long_as_the_others_did() -> None:
    pace = seen((100.0, training(done(0, 40), leased(1, 0))))
    assert pace.seconds_left(110.0) == 30.0
    assert pace.seconds_left(200.0) == 0.0


def test_without_any_result_the_steps_tell_how_long_learners_take() -> None:
    # 2 of 5 steps in 10 s: 25 s each, 15 s left, then 25 s for the one that waits.
    pace = seen(
        (0.0, training(leased(0, 0), made_up_learner(1))),
        (10.0, training(leased(0, 2), made_up_learner(1))),
    )
    assert pace.seconds_left(10.0) == 40.0


def test_another_attempt_begins_anew() -> None:
    pace = seen((0.0, training(leased(0, 4))), (100.0, training(leased(0, 0, attempts=2))))
    assert pace.seconds_left(110.0) is None


def test_without_a_worker_nothing_tells() -> None:
    assert seen((0.0, training(done(0, 40), made_up_learner(1)))).seconds_left(9.0) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "10 s"),
        (47.0, "50 s"),
        (89.0, "90 s"),
        (400.0, "7 min"),
        (5399.0, "90 min"),
        (7500.0, "2 h 5 min"),
        (40_000.0, "11 h"),
    ],
)
def test_durations_are_rounded_to_what_can_be_known(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_words_name_what_is_left() -> None:
    assert seen((100.0, merging(1)), (110.0, merging(21))).words(110.0) == "about 40 s left"
