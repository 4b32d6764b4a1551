"""Who is held back, with the clock and what is known of workers said by the test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lipt.common.states import LearnerState, RunState
from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.dispatch.quarantine import HeldBack, account_of, held_back, quarantined
from lipt.coordinator.runs.transitions import (
    after_failure,
    requeued,
    without_silent_ends,
)
from lipt.coordinator.state.records import RunRecord, SilentEnd

MakeRun = Callable[..., RunRecord]
NOW = 1000.0


def ended(run: RunRecord, index: int, *, step: int = 0, at: float = NOW) -> RunRecord:
    """The run after one more worker fell silent over a learner."""
    number = sum(len(learner.silent_ends) for learner in run.learners)
    end = SilentEnd(worker_id=f"w{number}", worker_name=f"vm-{number}", step=step, at=at)
    return run.with_learner(requeued(run.learners[index], "silent", end))


def after(run: RunRecord, *ends: tuple[int, int]) -> RunRecord:
    """The run after workers fell silent over (learner, step), one a second until now."""
    for place, (index, step) in enumerate(ends, start=1 - len(ends)):
        run = ended(run, index, step=step, at=NOW + place)
    return run


def with_one_in(run: RunRecord, index: int) -> RunRecord:
    return run.with_learner(run.learners[index].changed(state=LearnerState.DONE))


def held(run: RunRecord, *, now: float = NOW, furthest: int = 0, reserved: int = -1) -> HeldBack:
    keys = {AssignmentKey("r", reserved)}
    return held_back([run], furthest=lambda _: furthest, now=now, reserved=keys)


def tried(run: RunRecord, now: float) -> list[int]:
    return [key.learner for key in held(run, now=now).trials]


@pytest.mark.parametrize(
    ("ends", "suspects"),
    [
        ([], []),
        ([(0, 0), (0, 0)], []),
        ([(0, 0), (0, 0), (0, 0)], [0]),
        ([(0, 4), (0, 4), (0, 4)], [0]),
        # A machine goes away at any step, a learner that ends its worker always at the same.
        ([(0, 0), (0, 3), (0, 0)], []),
        ([(0, 5), (0, 0), (0, 0), (0, 0)], [0]),
        # Its siblings' ends say nothing once one of them is in.
        ([(0, 0), (0, 0), (1, 0)], []),
    ],
)
def test_a_learner_is_held_back_after_three_silent_ends_in_a_row_at_one_step(
    make_run: MakeRun, ends: list[tuple[int, int]], suspects: list[int]
) -> None:
    run = with_one_in(after(make_run(), *ends), 2)
    assert list(quarantined(run)) == suspects


def test_learners_of_a_run_cost_the_same_so_that_all_are_held_back_until_one_is_in(
    make_run: MakeRun,
) -> None:
    run = after(make_run(), (0, 0), (1, 0))
    assert held(run) == HeldBack()
    run = ended(run, 2)
    assert held(run).learners == {("r", 0), ("r", 1), ("r", 2)}
    assert held(with_one_in(run, 1)) == HeldBack()


def test_a_learner_that_gets_past_the_step_frees_the_others(make_run: MakeRun) -> None:
    run = after(make_run(), (0, 2), (1, 2), (2, 2))
    assert len(held(run, furthest=2).learners) == 3
    assert held(run, furthest=3) == HeldBack()


def test_a_learner_that_ended_three_itself_is_not_freed_by_the_others(make_run: MakeRun) -> None:
    run = after(make_run(), (0, 2), (0, 2), (0, 2))
    assert held(run, furthest=3).learners == {("r", 0)}


def test_one_that_failed_with_a_reason_has_not_ended_its_worker(make_run: MakeRun) -> None:
    run = after(make_run(), (0, 0), (0, 0))
    failed = after_failure(run.learners[0], worker_id="w", reason="NaN", max_attempts=9)
    assert list(quarantined(ended(run.with_learner(failed), 0))) == []


def test_a_worker_that_comes_back_was_not_ended(make_run: MakeRun) -> None:
    run = after(make_run(), (0, 0), (0, 0), (1, 0))
    assert len(quarantined(run)) == 3
    assert quarantined(without_silent_ends(run, "w1")) == {}


def test_one_learner_of_a_run_is_tried_a_minute_later_and_then_after_pauses_that_double(
    make_run: MakeRun,
) -> None:
    run = after(make_run(), (0, 0), (1, 0), (1, 0))
    # Learner 1 has ended most: it alone is tried, 2 minutes after the last end.
    assert tried(run, NOW + 119) == []
    assert tried(run, NOW + 120) == [1]
    run = ended(run, 1, at=NOW + 200)
    assert tried(run, NOW + 200 + 239) == []
    assert tried(run, NOW + 200 + 240) == [1]
    for _ in range(20):
        run = ended(run, 1, at=NOW + 300)
    assert tried(run, NOW + 300 + 3599) == []
    assert tried(run, NOW + 300 + 3600) == [1]


def test_the_pause_is_counted_from_the_latest_end_of_all_suspects(make_run: MakeRun) -> None:
    run = make_run()
    for _ in range(3):
        run = ended(run, 0, step=1, at=NOW - 900)
    for _ in range(3):
        run = ended(run, 1, step=2, at=NOW)
    run = with_one_in(run, 2)
    # Each has ended three, so that the pause is 4 minutes.
    assert tried(run, NOW + 239) == []
    assert tried(run, NOW + 240) == [0]


def test_a_learner_that_is_given_up_is_not_in_quarantine(make_run: MakeRun) -> None:
    run = after(make_run(), (0, 0), (0, 0), (0, 0))
    given_up = run.with_learner(run.learners[0].changed(state=LearnerState.FAILED))
    assert list(quarantined(run)) == [0, 1, 2]
    assert list(quarantined(given_up)) == [1, 2]


def test_no_second_one_is_tried_while_the_first_is_out(make_run: MakeRun) -> None:
    run = after(make_run(), (0, 0), (1, 0), (2, 0))
    assert tried(run, NOW + 60) == [0]
    assert held(run, now=NOW + 60, reserved=0).trials == ()
    leased = run.with_learner(run.learners[0].changed(state=LearnerState.LEASED))
    assert tried(leased, NOW + 60) == []


@pytest.mark.parametrize("state", [state for state in RunState if state is not RunState.TRAINING])
def test_only_runs_in_training_hold_anything_back(make_run: MakeRun, state: RunState) -> None:
    run = after(make_run(), (0, 0), (0, 0), (0, 0)).changed(state=state)
    assert held(run) == HeldBack()


def test_run_says_what_is_known(make_run: MakeRun) -> None:
    run = after(make_run(), (0, 0), (1, 0), (2, 0), (0, 0))
    said = account_of(run)
    assert said.startswith("3 learners in quarantine: 4 workers in a row (last vm-1, vm-2, vm-3)")
    assert "fell silent after step 0 and were not heard again" in said
    assert "Others go first" in said
    one = with_one_in(after(make_run(), (1, 7), (1, 7), (1, 7)), 0)
    assert account_of(one).startswith("learner 1 in quarantine: 3 workers in a row")
    assert account_of(make_run()) == ""
