import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lipt.cli.commands.run import (
    RunLines,
    change_lines,
    follow,
    heartbeat_line,
    learner_cells,
    stage_progress,
    state_line,
)
from lipt.cli.output import SignsOfLife
from lipt.common.states import LearnerState, RunState
from lipt.trainer.progress import RemainingTime, rounded_duration
from lipt.trainer.views import LearnerView, ProgressView, RunView, SoupView
from tests.trainer.made_up import DISCARDED, KEPT, made_up_learner, made_up_run


def test_a_row_shows_known_values() -> None:
    queued = made_up_learner(3, density=0.0)
    assert learner_cells(queued, 5) == ("3", "-", "-", "0/5", "-", "-", "-", "queued")
    training = made_up_learner(
        0, state=LearnerState.LEASED, worker="w-1", device="cpu", step=2, loss=1.2345
    )
    cells = " ".join(learner_cells(training, 5))
    assert cells == "0 w-1 cpu 2/5 1.234 - 0.900 training"
    done = replace(training, state=LearnerState.DONE, step=5, ingredient=KEPT)
    assert learner_cells(done, 5)[5:] == ("50.0%", "0.900", "kept, alpha 0.3")
    assert learner_cells(replace(done, ingredient=DISCARDED), 5)[-1] == "discarded"
    failed = made_up_learner(1, state=LearnerState.FAILED, message="the loss is not finite")
    assert learner_cells(failed, 5)[-1] == "failed: the loss is not finite"


def test_finished_learners_and_the_soup_are_lines_in_order() -> None:
    before = made_up_run(learners=(made_up_learner(0, state=LearnerState.LEASED),))
    took = {"loss": 1.5, "train_seconds": 4.25, "density": 0.912}
    finished = made_up_learner(0, state=LearnerState.DONE, worker="w-1", device="cpu", **took)
    assert change_lines(before, made_up_run(learners=(finished,))) == [
        "learner 0: done on w-1 (cpu) in 4.2 s, loss 1.500, density 0.912"
    ]
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


def test_a_state_line_has_its_activity() -> None:
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


def test_the_waiting_reason_is_a_line() -> None:
    assert heartbeat_line(None, 12.0) == "waiting for the coordinator's first answer for 12 s"
    run = made_up_run(learners=(made_up_learner(0),))
    assert heartbeat_line(run, 25.0) == (
        "run demo: training, 0 of 1 learners done; no worker has an assignment: is a lipt-worker "
        "running?; no news for 25 s"
    )
    waits = replace(run, waiting_reason="worker vm is idle, but does not allow `mine`")
    line = "run demo: training, 0 of 1 learners done; worker vm is idle, but does not allow `mine`"
    assert change_lines(run, waits) == [line]
    assert change_lines(waits, waits) == []
    # That it is mended is seen by what the workers do then.
    assert change_lines(waits, run) == []
    assert heartbeat_line(waits, 0.0) == line


def merging(done: int) -> RunView:
    return made_up_run(state=RunState.MERGING, progress=ProgressView("merging learners", done, 91))


def seen(*observations: tuple[float, RunView]) -> RemainingTime:
    remaining = RemainingTime()
    for now, run in observations:
        remaining.observe(run.state, stage_progress(run), now)
    return remaining


def test_remaining_time_of_training_counts_steps_of_all_learners() -> None:
    # Of 3 learners' 5 steps 2 are done at first, and 7 after 10 s: the other 8 take 16 s.
    def run(*learners: LearnerView) -> RunView:
        return made_up_run(learners=(*learners, made_up_learner(2)))

    def leased(index: int, step: int) -> LearnerView:
        return made_up_learner(index, state=LearnerState.LEASED, step=step)

    done = made_up_learner(0, state=LearnerState.DONE)
    remaining = seen((0.0, run(leased(0, 1), leased(1, 1))), (10.0, run(done, leased(1, 2))))
    assert remaining.text(10.0) == "about 20 s left"
    another_attempt = run(done, leased(1, 0))
    remaining.observe(another_attempt.state, stage_progress(another_attempt), 11.0)
    assert remaining.text(13.0) == ""


@pytest.mark.parametrize(
    "run",
    [
        merging(5),
        made_up_run(state=RunState.READY),
        made_up_run(
            state=RunState.MERGING, progress=ProgressView("waiting for its turn", 0, 9, ahead=2)
        ),
    ],
    ids=["nothing moved", "ended", "queued"],
)
def test_no_remaining_time_is_estimated_without_progress(run: RunView) -> None:
    assert seen((100.0, merging(5)), (200.0, run)).text(300.0) == ""


def test_remaining_time_counts_down_without_news_and_is_then_hidden() -> None:
    # 10 of 91 are merged in 10 s after the first: the other 80 take 80 s.
    remaining = seen((0.0, merging(1)), (10.0, merging(11)))
    assert remaining.text(10.0) == "about 80 s left"
    assert remaining.text(40.0) == "about 50 s left"
    # The same figure again is no progress.
    remaining.observe(RunState.MERGING, stage_progress(merging(11)), 40.0)
    assert remaining.text(40.0) == "about 50 s left"
    assert remaining.text(89.0) == "about 10 s left"
    assert remaining.text(90.0) == remaining.text(1000.0) == ""
    # At last the next one: 11 in 110 s, and 79 are missing.
    remaining.observe(RunState.MERGING, stage_progress(merging(12)), 110.0)
    assert remaining.text(110.0) == "about 13 min left"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "10 s"), (47.0, "50 s"), (400.0, "7 min"), (5399.0, "90 min"), (7500.0, "2.1 h")],
)
def test_remaining_times_are_rounded(seconds: float, words: str) -> None:
    assert rounded_duration(seconds) == words


def test_lines_come_at_changes_and_at_least_every_ten_seconds() -> None:
    said: list[str] = []
    lines = RunLines(SignsOfLife(said.append, now=0.0), now=0.0)
    lines.show(made_up_run(state=RunState.PENDING), now=1.0)
    assert said == ["run demo: pending"]
    for second in range(2, 10):
        lines.tick(float(second))
    assert len(said) == 1
    lines.tick(10.0)
    assert said[1:] == ["run demo: pending"]
    lines.tick(19.0)
    assert said[2:] == ["run demo: pending; no news for 18 s"]


def test_a_check_ends_the_watch() -> None:
    hold = threading.Event()

    def changes() -> Iterator[RunView]:
        yield made_up_run()
        hold.wait()

    def check() -> None:
        raise RuntimeError("a process died")

    with pytest.raises(RuntimeError, match="a process died"):
        follow(changes(), check=check)
    hold.set()
