from __future__ import annotations

from collections.abc import Callable

from lipt.common.blobs.blob import BlobName
from lipt.common.states import LearnerState
from lipt.coordinator.runs.transitions import (
    Closing,
    LearnerResult,
    after_failure,
    decide_closing,
    done,
    is_in,
    leased,
    requeued,
    with_deadline_running,
    without_open_learners,
    without_results,
)
from lipt.coordinator.state.records import CopyRecord, LearnerRecord, RunRecord, SilentEnd

MakeRun = Callable[..., RunRecord]


def having(run: RunRecord, *states: LearnerState, message: str = "") -> RunRecord:
    for index, state in enumerate(states):
        learner = run.learners[index].changed(state=state, message=message, worker_name="box")
        run = run.with_learner(learner)
    return run


def test_waits_while_learners_are_out_and_there_is_no_deadline(make_run: MakeRun) -> None:
    run = having(make_run(), LearnerState.DONE, LearnerState.LEASED)
    decision = decide_closing(run, now=1e9)
    assert (decision.verdict, decision.seconds_left) == (Closing.WAIT, None)
    begun = decide_closing(run.changed(training_started_at=0.0), now=1e9)
    assert (begun.verdict, begun.seconds_left) == (Closing.WAIT, None)


def test_merges_once_every_learner_has_ended(make_run: MakeRun) -> None:
    run = having(make_run(), LearnerState.DONE, LearnerState.DONE, LearnerState.FAILED)
    decision = decide_closing(run, now=0.0)
    assert decision.verdict is Closing.MERGE
    assert "2 of 3 learners" in decision.reason


def test_fails_when_too_few_can_still_arrive_and_says_which_are_missing(make_run: MakeRun) -> None:
    run = make_run(num_learners=2, min_learners=2)
    run = having(run, LearnerState.FAILED, message="attempt 3 of 3: loss is nan")
    run = run.with_learner(run.learners[1].changed(state=LearnerState.DONE))
    decision = decide_closing(run, now=0.0)
    assert decision.verdict is Closing.FAIL
    assert "learner 0 (failed: attempt 3 of 3: loss is nan)" in decision.reason


def test_learners_that_all_diverged_are_told_once(make_run: MakeRun) -> None:
    account = (
        "attempt 3 of 3 on w: the learner diverged: the loss is nan after step {} of 10. Lower"
    )
    run = make_run(num_learners=2)
    run = having(run, LearnerState.FAILED, message=account.format(4))
    run = having(run, *[LearnerState.FAILED] * 2, message=account.format(5))
    assert decide_closing(run, now=0.0).reason == (
        "all 2 learners diverged (the loss is nan after step 5 of 10). Scale the features, or "
        "lower learners.learning_rate."
    )


def test_deadline_counts_from_the_first_assignment(make_run: MakeRun) -> None:
    run = having(make_run(deadline_seconds=10.0), LearnerState.DONE, LearnerState.LEASED)
    assert decide_closing(run, now=1e9).verdict is Closing.WAIT
    started = run.changed(training_started_at=100.0)
    assert decide_closing(started, now=107.0).seconds_left == 3.0
    assert decide_closing(started, now=110.0).verdict is Closing.MERGE


def test_deadline_with_too_few_fails_and_says_where_the_others_are(make_run: MakeRun) -> None:
    run = having(
        make_run(deadline_seconds=10.0, min_learners=2), LearnerState.DONE, LearnerState.LEASED
    ).changed(training_started_at=0.0)
    decision = decide_closing(run, now=10.0)
    assert decision.verdict is Closing.FAIL
    assert "learner 1 (at worker box)" in decision.reason
    assert "learner 2 (waiting for a worker)" in decision.reason
    assert "deadline_seconds" in decision.reason


def test_learner_is_given_up_after_max_attempts(make_run: MakeRun) -> None:
    learner = make_run().learners[0]
    once = after_failure(learner, worker_id="a", reason="NaN", max_attempts=2)
    twice = after_failure(once, worker_id="b", reason="NaN", max_attempts=2)
    assert (once.state, twice.state) == (LearnerState.QUEUED, LearnerState.FAILED)
    assert twice.failed_on == ("a", "b")
    assert twice.message == "attempt 2 of 2: NaN"


def test_reasons_of_failed_attempts_stay_after_a_success(make_run: MakeRun) -> None:
    learner = make_run().learners[0].changed(worker_name="liar")
    for reason in ("NaN", "too dense"):
        learner = after_failure(learner, worker_id="w", reason=reason, max_attempts=9)
    assert learner.account == "attempt 1 of 9 on liar: NaN; attempt 2 of 9 on liar: too dense"
    at_last = learner.changed(state=LearnerState.DONE, message="")
    assert at_last.account == learner.account


def test_record_does_not_grow_with_the_number_of_attempts(make_run: MakeRun) -> None:
    learner = make_run().learners[0]
    for _ in range(50):
        learner = after_failure(learner, worker_id="w", reason="x" * 9999, max_attempts=99)
    assert len(learner.account) < 3000
    assert "attempt 50 of 99" in learner.account


def test_deadline_of_a_run_that_was_held_begins_anew_when_it_goes_on(make_run: MakeRun) -> None:
    run = having(make_run(deadline_seconds=10.0), LearnerState.DONE, LearnerState.LEASED)
    out = run.with_learner(run.learners[1].changed(epoch=1)).changed(training_started_at=100.0)
    held = out.changed(training_started_at=None)
    assert decide_closing(held, now=1e9).verdict is Closing.WAIT
    again = with_deadline_running(held, now=500.0)
    assert decide_closing(again, now=504.0).seconds_left == 6.0


def test_deadline_that_runs_goes_on_and_never_began_in_the_future(make_run: MakeRun) -> None:
    waiting = make_run(deadline_seconds=10.0)
    assert with_deadline_running(waiting, now=107.0) is waiting
    run = waiting.changed(training_started_at=100.0)
    assert with_deadline_running(run, now=107.0) is run
    assert with_deadline_running(run, now=90.0).training_started_at == 90.0


def silent_end(step: int) -> SilentEnd:
    return SilentEnd(worker_id="w", worker_name="box", step=step, at=0.0)


def handed_in(learner: LearnerRecord, content: bytes = b"x") -> LearnerRecord:
    """The learner once worker "w" has handed it in."""
    out = leased(learner, worker_id="w", worker_name="box", device="cpu")
    return done(out, LearnerResult(BlobName.of(content), 1.0, 1.0, bytes_received=0))


def copy_of(learner: LearnerRecord) -> CopyRecord:
    return CopyRecord(
        epoch=learner.epoch,
        worker_id=learner.worker_id,
        worker_name=learner.worker_name,
        party=learner.worker_id,
        kind="cpu",
        result=BlobName.of(b"x"),
    )


def test_the_latest_ten_silent_ends_are_kept_until_a_learner_is_in(make_run: MakeRun) -> None:
    learner = make_run().learners[0]
    for step in range(50):
        learner = requeued(learner, "silent", silent_end(step))
    assert [end.step for end in learner.silent_ends] == list(range(40, 50))
    assert handed_in(learner).silent_ends == ()


def test_only_the_same_result_of_the_same_lease_is_in_already(make_run: MakeRun) -> None:
    learner, x = handed_in(make_run().learners[0]), BlobName.of(b"x")
    held_back = requeued(learner, "").changed(copies=(copy_of(learner),), result=None)
    for there in (learner, held_back):
        assert is_in(there, x, "w", 1)
        assert not is_in(there, x, "w", 2)
        assert not is_in(there, x, "other", 1)
        assert not is_in(there, BlobName.of(b"y"), "w", 1)


def test_only_open_learners_are_dropped_when_a_run_closes(make_run: MakeRun) -> None:
    states = (LearnerState.DONE, LearnerState.FAILED, LearnerState.LEASED, LearnerState.QUEUED)
    closed = without_open_learners(having(make_run(num_learners=4), *states), "closed")
    assert [learner.state for learner in closed.learners] == [
        LearnerState.DONE,
        LearnerState.FAILED,
        LearnerState.DROPPED,
        LearnerState.DROPPED,
    ]
    assert [learner.message for learner in closed.learners] == ["", "", "closed", "closed"]


def test_a_damaged_result_goes_with_all_that_was_handed_in_for_it(make_run: MakeRun) -> None:
    run = make_run(num_learners=2)
    for learner in run.learners:
        whole = handed_in(learner)
        run = run.with_learner(whole.changed(copies=(copy_of(whole),)))
    lost, kept = without_results(run, (0,)).learners
    assert (lost.state, lost.result, lost.copies) == (LearnerState.QUEUED, None, ())
    assert kept == run.learners[1]
