"""Runs in words; seconds are made up, and sums by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lipt.common.config.run_config import LearnersConfig, RunConfig
from lipt.common.states import LearnerState, RunState
from lipt.trainer.cli.display.progress import (
    Pace,
    change_lines,
    heartbeat_line,
    in_words,
    learner_cells,
    run_lines,
    state_line,
)
from lipt.trainer.views import LearnerView, ProgressView, RunView, SoupView
from tests.trainer.made_up import DISCARDED, KEPT, made_up_learner, made_up_run


def test_a_row_shows_what_is_known() -> None:
    queued = made_up_learner(3, density=0.0)
    assert learner_cells(queued, 5) == ("3", "-", "-", "0/5", "-", "-", "-", "queued")
    training = made_up_learner(
        0, state=LearnerState.LEASED, worker="w-1", device="cpu", step=2, loss=1.2345
    )
    assert learner_cells(training, 5) == (
        "0",
        "w-1",
        "cpu",
        "2/5",
        "1.234",
        "-",
        "0.900",
        "training",
    )
    done = replace(training, state=LearnerState.DONE, step=5, ingredient=KEPT)
    assert learner_cells(done, 5)[5:] == ("50.0%", "0.900", "kept, alpha 0.3")
    assert learner_cells(replace(done, ingredient=DISCARDED), 5)[-1] == "discarded"
    failed = made_up_learner(1, state=LearnerState.FAILED, message="the loss is not finite")
    assert learner_cells(failed, 5)[-1] == "failed: the loss is not finite"


def test_the_first_sight_of_a_run_is_one_line() -> None:
    run = made_up_run(learners=(made_up_learner(0), made_up_learner(1)))
    assert change_lines(None, run) == ["run demo: training, 0 of 2 learners done"]


def test_a_step_alone_is_not_worth_a_line() -> None:
    before = made_up_run(learners=(made_up_learner(0, state=LearnerState.LEASED, step=1),))
    after = made_up_run(learners=(made_up_learner(0, state=LearnerState.LEASED, step=2),))
    assert change_lines(before, after) == []


def test_a_finished_learner_is_a_line() -> None:
    before = made_up_run(learners=(made_up_learner(0, state=LearnerState.LEASED),))
    done = made_up_learner(
        0,
        state=LearnerState.DONE,
        worker="w-1",
        device="cpu",
        loss=1.5,
        train_seconds=4.25,
        density=0.912,
    )
    assert change_lines(before, made_up_run(learners=(done,))) == [
        "learner 0: done on w-1 (cpu) in 4.2 s, loss 1.500, density 0.912"
    ]


def test_a_learner_that_came_back_undone_is_a_line() -> None:
    before = made_up_run(learners=(made_up_learner(0, state=LearnerState.LEASED),))
    after = made_up_run(learners=(made_up_learner(0, message="worker w-1 was lost"),))
    assert change_lines(before, after) == ["learner 0: queued: worker w-1 was lost"]


def test_the_soup_is_told_in_its_order() -> None:
    soup = SoupView(0.1, 0.375, 0.5, 0.5, num_kept=1, num_validation_examples=200)
    done = [made_up_learner(index, state=LearnerState.DONE) for index in (0, 1)]
    before = made_up_run(state=RunState.MERGING, learners=tuple(done))
    after = made_up_run(
        state=RunState.READY,
        learners=(replace(done[0], ingredient=DISCARDED), replace(done[1], ingredient=KEPT)),
        soup=soup,
    )
    assert change_lines(before, after) == [
        "learner 1: kept, alpha 0.3, validation 50.0%, soup 50.0%",
        "learner 0: discarded, validation 25.0%, soup 50.0%",
        (
            "run demo: ready; soup 50.0% on 200 validation examples (theta* 10.0%, learners 37.5% "
            "in the mean and 50.0% at best), kept 1 of 2 learners"
        ),
    ]


def test_a_state_says_what_is_done_in_it() -> None:
    merging = made_up_run(state=RunState.MERGING, progress=ProgressView("greedy soup", 3, 10))
    assert state_line(merging) == "run demo: merging, greedy soup 3/10"
    unknown = made_up_run(state=RunState.INITIALIZING, progress=ProgressView("training", 0, 0))
    assert state_line(unknown) == "run demo: initializing, training"
    waiting = ProgressView("waiting for its turn", 0, 0, ahead=3)
    line = state_line(made_up_run(state=RunState.INITIALIZING, progress=waiting))
    assert line == "run demo: initializing, waiting for its turn, 3 ahead"
    failed = made_up_run(state=RunState.FAILED, message="no learner arrived.")
    assert state_line(failed) == "run demo: failed: no learner arrived."
    assert state_line(made_up_run(name="", state=RunState.PENDING)) == "run r-1: pending"


def test_a_heartbeat_says_who_trains() -> None:
    learners = tuple(
        made_up_learner(index, state=LearnerState.LEASED, step=index) for index in range(6)
    )
    assert heartbeat_line(made_up_run(learners=learners), 3.0) == (
        "run demo: training, 0 of 6 learners done; learner 0 at step 0/5, learner 1 at step 1/5, "
        "learner 2 at step 2/5, learner 3 at step 3/5, 2 more"
    )


def test_a_heartbeat_says_what_is_wrong() -> None:
    assert heartbeat_line(None, 12.0) == "waiting for the coordinator's first answer for 12 s"
    assert heartbeat_line(made_up_run(learners=(made_up_learner(0),)), 25.0) == (
        "run demo: training, 0 of 1 learners done; no worker has an assignment: is a lipt-worker "
        "running?; no news for 25 s"
    )


def test_what_a_run_waits_for_is_a_line_and_answers_where_the_workers_are() -> None:
    run = made_up_run(learners=(made_up_learner(0),))
    assert "is a lipt-worker running?" in heartbeat_line(run, 0.0)
    waits = replace(run, waiting="worker vm is idle, but does not allow `mine`")
    line = "run demo: training, 0 of 1 learners done; worker vm is idle, but does not allow `mine`"
    assert change_lines(run, waits) == [line]
    assert change_lines(waits, waits) == []
    # That it is mended is seen by what the workers do then.
    assert change_lines(waits, run) == []
    assert heartbeat_line(waits, 0.0) == line


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


def test_a_run_says_what_was_fitted_to_its_data() -> None:
    assert not any("fitted" in line for line in run_lines(made_up_run()))
    lines = run_lines(made_up_run(fitted="2560 are more than 1597"))
    assert "fitted to the data: 2560 are more than 1597" in lines


@pytest.mark.parametrize(
    ("num_snapshots", "told"),
    [
        (0, "K=10 steps"),
        (1, "K=10 steps, a snapshot after step 10"),
        (2, "K=10 steps, a snapshot after steps 5, 10"),
    ],
)
def test_a_run_says_when_its_learners_leave_snapshots(num_snapshots: int, told: str) -> None:
    learners = LearnersConfig(num_steps=10, num_snapshots=num_snapshots)
    run = made_up_run(config=RunConfig(model="resnet8", learners=learners))
    (line,) = (line for line in run_lines(run) if line.startswith("model "))
    assert line.endswith(told)
