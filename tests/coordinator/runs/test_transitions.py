import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import CorruptBlobError, OtherDataError, RunNotReadyError
from lipt.common.observability.logs import EventKind, Events
from lipt.common.states import DivergedQuantity, Divergence, LearnerState, RunState
from lipt.coordinator.compute.context import DataDescription
from lipt.coordinator.compute.jobs.pretraining import (
    CutShards,
    DamagedLearners,
    InitializeWeights,
    MakeSoup,
    SoupResult,
)
from lipt.coordinator.compute.messages import JobOptions
from lipt.coordinator.runs.availability import (
    find_ready,
    hold_reason,
    hold_runs_of_other_data,
    how_far,
    restore,
    restore_inputs,
)
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.runs.transitions import (
    MAX_LOSSES,
    Closing,
    LossCurve,
    after_failure,
    decide_closing,
    done,
    has_result,
    requeued,
    with_deadline_running,
    without_open_learners,
    without_results,
)
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import (
    FailureReason,
    LearnerFailure,
    LearnerRecord,
    LearnerResult,
    RunRecord,
    SilentEnd,
    UnconfirmedResult,
)
from lipt.data.inputs.specs import (
    Column,
    ColumnFormat,
    ColumnsFormat,
    ColumnsSpec,
    ColumnType,
    ImageSpec,
)
from tests.coordinator.fakes import DATA, SOUP_RECORD, FakeCompute
from tests.coordinator.made_up_runs import error, having, holder, leased, made_up_run, status


def test_a_run_without_a_deadline_closes_after_all_learners() -> None:
    run = having(made_up_run(), LearnerState.DONE, LearnerState.LEASED)
    for waiting in (run, run.changed(training_started_at=0.0)):
        decision = decide_closing(waiting, now=1e9)
        assert (decision.verdict, decision.seconds_left) == (Closing.WAIT, None)
    run = having(made_up_run(), LearnerState.DONE, LearnerState.DONE, LearnerState.FAILED)
    decision = decide_closing(run, now=0.0)
    assert decision.verdict is Closing.MERGE
    assert "2 of 3 learners" in decision.reason


def test_a_run_fails_if_too_few_learners_can_arrive() -> None:
    run = made_up_run(num_learners=2, min_learners=2)
    run = having(run, LearnerState.FAILED, message="attempt 3 of 3: loss is nan")
    run = run.with_learner(run.learners[1].changed(status=status(LearnerState.DONE)))
    decision = decide_closing(run, now=0.0)
    assert decision.verdict is Closing.FAIL
    assert "learner 0 (failed: attempt 3 of 3: loss is nan)" in decision.reason


def diverged(step: int) -> LearnerFailure:
    divergence = Divergence(DivergedQuantity.LOSS, step, 10)
    return LearnerFailure(reason=FailureReason.DIVERGED, detail="nan", divergence=divergence)


def failed(learner: LearnerRecord, failure: LearnerFailure) -> LearnerRecord:
    return after_failure(learner, failure, holder=holder("w"), max_attempts=1)


def test_equal_failures_of_all_learners_are_reported_once() -> None:
    run = made_up_run(num_learners=2, max_attempts=1)
    run = run.with_learner(failed(run.learners[0], diverged(5)))
    other = failed(run.learners[1], error("it diverged"))
    assert "Missing: learner 0" in decide_closing(run.with_learner(other), now=0.0).reason
    alike = run.with_learner(failed(run.learners[1], diverged(4)))
    assert decide_closing(alike, now=0.0).reason == (
        "all 2 learners diverged (loss not finite after step 5 of 10). Scale the features, or "
        "lower learners.learning_rate."
    )


def test_deadline_counts_from_the_first_assignment() -> None:
    run = having(made_up_run(deadline_seconds=10.0), LearnerState.DONE, LearnerState.LEASED)
    assert decide_closing(run, now=1e9).verdict is Closing.WAIT
    started = run.changed(training_started_at=100.0)
    assert decide_closing(started, now=107.0).seconds_left == 3.0
    assert decide_closing(started, now=110.0).verdict is Closing.MERGE


def test_a_deadline_with_too_few_learners_fails_with_the_missing_ones() -> None:
    run = made_up_run(deadline_seconds=10.0, min_learners=2).changed(training_started_at=0.0)
    run = having(run, LearnerState.DONE, LearnerState.LEASED)
    decision = decide_closing(run, now=10.0)
    assert decision.verdict is Closing.FAIL
    assert "learner 1 (leased)" in decision.reason
    assert "learner 2 (queued)" in decision.reason
    assert "Raise learners.deadline_seconds, or add workers" in decision.reason


def test_a_learner_fails_after_max_attempts_with_its_reasons() -> None:
    learner = made_up_run().learners[0]
    once = after_failure(
        learner, diverged(5), holder=holder("a", worker_name="faulty"), max_attempts=2
    )
    dense = LearnerFailure(reason=FailureReason.REJECTED, detail="too dense")
    twice = after_failure(once, dense, holder=holder("b", worker_name="faulty"), max_attempts=2)
    assert (once.state, twice.state) == (LearnerState.QUEUED, LearnerState.FAILED)
    assert twice.failed_on == ("a", "b")
    assert twice.latest_reason == "attempt 2 of 2 on faulty: too dense"
    at_last = twice.changed(status=status(LearnerState.DONE))
    assert at_last.account == (
        "attempt 1 of 2 on faulty: the learner diverged: loss not finite after step 5 of 10; "
        "attempt 2 of 2 on faulty: too dense"
    )
    assert requeued(once, "its worker left").latest_reason == "its worker left"
    assert LearnerRecord.model_validate_json(twice.model_dump_json()) == twice


def test_record_does_not_grow_with_the_number_of_attempts() -> None:
    learner = made_up_run().learners[0]
    for _ in range(50):
        failure = error("x" * 9999)
        learner = after_failure(learner, failure, holder=holder("w"), max_attempts=99)
    assert len(learner.account) < 3000
    assert "attempt 50 of 99" in learner.account


def test_a_held_run_s_deadline_restarts() -> None:
    run = having(made_up_run(deadline_seconds=10.0), LearnerState.DONE, LearnerState.LEASED)
    out = run.with_learner(run.learners[1].changed(epoch=1)).changed(training_started_at=100.0)
    held = out.changed(training_started_at=None)
    assert decide_closing(held, now=1e9).verdict is Closing.WAIT
    again = with_deadline_running(held, now=500.0)
    assert decide_closing(again, now=504.0).seconds_left == 6.0


def test_a_deadline_survives_a_changed_system_clock() -> None:
    waiting = made_up_run(deadline_seconds=10.0)
    assert with_deadline_running(waiting, now=107.0) is waiting
    run = waiting.changed(training_started_at=100.0)
    assert with_deadline_running(run, now=107.0) is run
    assert with_deadline_running(run, now=90.0).training_started_at == 90.0


def handed_in(learner: LearnerRecord) -> LearnerRecord:
    out = leased(learner, "box")
    return done(out, holder(), LearnerResult(blob=BlobName.of(b"x")))


def unconfirmed_of(learner: LearnerRecord) -> UnconfirmedResult:
    assert learner.result is not None
    return UnconfirmedResult(epoch=learner.epoch, holder=holder(), result=learner.result)


def test_the_last_ten_silent_ends_are_kept_until_a_result() -> None:
    learner = made_up_run().learners[0]
    for step in range(50):
        end = SilentEnd(worker_id="w", worker_name="box", step=step, at=0.0)
        learner = requeued(learner, "silent", end)
    assert [end.step for end in learner.silent_ends] == list(range(40, 50))
    assert handed_in(learner).silent_ends == ()


def test_only_the_same_result_of_the_same_lease_is_a_repeat() -> None:
    learner, x = handed_in(made_up_run().learners[0]), BlobName.of(b"x")
    held_back = requeued(learner, "").changed(unconfirmed=(unconfirmed_of(learner),))
    for there in (learner, held_back):
        assert has_result(there, x, "box", 1)
        assert not has_result(there, x, "box", 2)
        assert not has_result(there, x, "other", 1)
        assert not has_result(there, BlobName.of(b"y"), "box", 1)


def test_only_open_learners_are_dropped_when_a_run_closes() -> None:
    states = (LearnerState.DONE, LearnerState.FAILED, LearnerState.LEASED, LearnerState.QUEUED)
    closed = without_open_learners(having(made_up_run(num_learners=4), *states), "closed")
    assert [learner.state for learner in closed.learners] == [
        LearnerState.DONE,
        LearnerState.FAILED,
        LearnerState.DROPPED,
        LearnerState.DROPPED,
    ]
    assert [learner.message for learner in closed.learners] == ["", "", "closed", "closed"]


def test_a_damaged_result_is_removed_with_its_snapshots() -> None:
    run = made_up_run(num_learners=2)
    for learner in run.learners:
        whole = handed_in(learner)
        run = run.with_learner(whole.changed(unconfirmed=(unconfirmed_of(whole),)))
    lost, kept = without_results(run, (0,)).learners
    assert (lost.state, lost.result, lost.unconfirmed) == (LearnerState.QUEUED, None, ())
    assert kept == run.learners[1]


# What `made_up_run` names.
THETA, SHARDS, THETA_P = b"theta*", (b"0", b"1", b"2"), b"theta_p"


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    """All files of `made_up_run`'s run, and a theta_p."""
    blobs = BlobStore(tmp_path, max_blob_bytes=1000)
    for content in (THETA, *SHARDS, THETA_P):
        blobs.put_bytes(content)
    return blobs


@pytest.fixture
def compute(blobs: BlobStore) -> FakeCompute:
    """Makes all of them again, as they were."""
    return FakeCompute(
        {
            InitializeWeights: lambda _: blobs.put_bytes(THETA),
            CutShards: lambda _: [blobs.put_bytes(content) for content in SHARDS],
            MakeSoup: lambda _: SoupResult(blobs.put_bytes(THETA_P), SOUP_RECORD, {}),
        }
    )


@pytest.fixture
def ready() -> RunRecord:
    made = made_up_run(num_learners=2, state=RunState.READY)
    learner = made.learners[1].changed(status=status(LearnerState.DONE))
    return made.with_learner(learner).changed(pretrained_weights=BlobName.of(THETA_P))


async def restore_theta_p(run: RunRecord, blobs: BlobStore, compute: FakeCompute) -> list[str]:
    wanted = [BlobName.of(THETA_P)]
    await restore(run, wanted, blobs, compute.queue, lambda _: None, JobOptions(run.run_id))
    return compute.kinds


@pytest.mark.parametrize(
    ("damage", "also", "made"),
    [
        (THETA_P, (), []),
        (b"theta_q", (), ["MakeSoup"]),
        (b"", (), ["MakeSoup"]),
        (None, (), ["MakeSoup"]),
        (None, (THETA,), ["InitializeWeights", "MakeSoup"]),
    ],
)
async def test_damaged_weights_are_merged_again_from_the_same_learners(
    ready: RunRecord,
    blobs: BlobStore,
    compute: FakeCompute,
    damage: bytes | None,
    also: tuple[bytes, ...],
    made: list[str],
) -> None:
    path = blobs.path(BlobName.of(THETA_P))
    path.unlink() if damage is None else path.write_bytes(damage)
    for content in also:
        blobs.path(BlobName.of(content)).unlink()
    assert await restore_theta_p(ready, blobs, compute) == made
    assert blobs.read_bytes(BlobName.of(THETA_P)) == THETA_P
    if made:
        assert compute.jobs[-1].learners == ((1, BlobName.of(b"learner")),)


@pytest.mark.parametrize(
    "answer", [DamagedLearners((0, 1)), SoupResult(BlobName.of(b"other"), SOUP_RECORD, {})]
)
async def test_weights_that_cannot_be_recomputed_are_reported_lost(
    ready: RunRecord, blobs: BlobStore, compute: FakeCompute, answer: object
) -> None:
    blobs.path(BlobName.of(THETA_P)).unlink()
    compute.answers[MakeSoup] = answer
    other = rf"1 files of run name-r .*{BlobName.of(THETA_P).sha256[:12]}.*Start the run again\."
    lost = rf"{other}|theta_p of run name-r is lost, and so are results .*start the run again\."
    with pytest.raises(CorruptBlobError, match=lost):
        await restore_theta_p(ready, blobs, compute)


@pytest.mark.parametrize(
    ("damaged", "made"),
    [
        ((), []),
        ((THETA,), ["InitializeWeights"]),
        ((SHARDS[1],), ["CutShards"]),
        ((SHARDS[0], THETA, SHARDS[2]), ["InitializeWeights", "CutShards"]),
    ],
)
async def test_damaged_inputs_are_computed_again(
    blobs: BlobStore, compute: FakeCompute, damaged: tuple[bytes, ...], made: list[str]
) -> None:
    for content in damaged:
        blobs.path(BlobName.of(content)).write_bytes(content.swapcase() + b"!")
    await restore_inputs(made_up_run(), blobs, compute.queue, lambda _: None)
    assert compute.kinds == made
    assert all(blobs.is_whole(BlobName.of(content)) for content in (THETA, *SHARDS))


async def test_unneeded_damaged_inputs_are_ignored(blobs: BlobStore, compute: FakeCompute) -> None:
    blobs.path(BlobName.of(SHARDS[2])).unlink()
    run = made_up_run()
    done = run.with_learner(run.learners[2].changed(status=status(LearnerState.DONE)))
    for quiet in (done, run.changed(initial_weights=None, learners=())):
        await restore_inputs(quiet, blobs, compute.queue, lambda _: None)
    assert compute.kinds == []


OWN = "f" * 64
OTHER = replace(DATA, source="other", fingerprint="e" * 64)


COLUMN = Column("x", ColumnType.FLOAT32, (4,))
DOUBLES = replace(COLUMN, type=ColumnType.FLOAT64)
COLUMNS = {"inputs": ColumnsFormat((ColumnFormat(COLUMN),))}


@pytest.mark.parametrize(
    ("changed", "data", "words"),
    [
        ({}, DATA, ""),
        ({}, replace(DATA, fingerprint="e" * 64), f"serves fake with {'e' * 64}"),
        (
            {},
            replace(DATA, inputs=ImageSpec(3, 16, 16)),
            "looks at 1x8x8 images, and this .* has fake as 3x16x16 images.*--image-size",
        ),
        (COLUMNS, replace(DATA, inputs=ColumnsSpec((COLUMN,))), ""),
        (
            COLUMNS,
            replace(DATA, inputs=ColumnsSpec((DOUBLES,))),
            r"looks at x float32\[4\], and .* fake as x float64\[4\].* as the run began\.$",
        ),
    ],
)
def test_a_run_is_held_by_its_fingerprint_and_by_its_inputs(
    changed: dict[str, Any], data: DataDescription, words: str
) -> None:
    reason = hold_reason(made_up_run().changed(**changed), data)
    assert re.search(words, reason) if words else reason == ""


def test_the_hold_reason_has_both_fingerprints_sources_and_the_remedy() -> None:
    told = (
        f"run name-r was made on data with fingerprint {OWN} (mine:data), this coordinator now "
        f"serves other with {'e' * 64}. Start the coordinator with the run's own data"
    )
    assert hold_reason(made_up_run().changed(source="mine:data"), OTHER) == f"{told}."


async def test_runs_of_other_data_are_held_and_counted_unless_ended(database: Database) -> None:
    store, events = RunStore(database), Events()
    for run_id, state in (("r", RunState.MERGING), ("done", RunState.READY)):
        await store.add(made_up_run(run_id, state=state))
    await store.add(made_up_run("own").changed(fingerprint=OTHER.fingerprint))
    hold_runs_of_other_data(store, OTHER, events)
    assert store.held("r")
    assert store.held("done")
    assert store.held("own") == ""
    shown = [store.shown_state(run) for run in store.runs()]
    assert shown == [RunState.HELD, RunState.READY, RunState.TRAINING]
    assert events.count(EventKind.RUN_HELD) == 1


async def test_requests_of_a_held_run_are_refused(database: Database) -> None:
    store = RunStore(database)
    await store.add(made_up_run())
    with pytest.raises(RunNotReadyError, match="is training"):
        find_ready(store, "r")
    store.hold("r", "other data.")
    with pytest.raises(OtherDataError, match="other data"):
        find_ready(store, "r")
    ready = {"state": RunState.READY, "pretrained_weights": BlobName.of(b"theta_p")}
    ended = await store.update("r", lambda run: run.changed(**ready))
    assert find_ready(store, "r") == ended


def test_an_open_run_s_refusal_has_its_progress_and_a_command() -> None:
    run = made_up_run()
    run = run.with_learner(run.learners[1].changed(status=status(LearnerState.DONE)))
    assert how_far(run, "") == (
        "run name-r is training (1 of 3 learners are in). Follow it with: lipt run watch name-r"
    )
    merging = made_up_run(state=RunState.MERGING)
    assert "run name-r is merging (merging learners). " in how_far(merging, "merging learners")
    pending = made_up_run(state=RunState.PENDING)
    assert "run name-r is pending. " in how_far(pending, "")


@pytest.mark.parametrize(
    ("state", "message", "said"),
    [
        (RunState.FAILED, "its workers went home.", "has failed: its workers went home."),
        (RunState.FAILED, "no sentence", "has failed: no sentence."),
        (RunState.CANCELLED, "", "was cancelled."),
    ],
)
def test_an_ended_run_s_refusal_has_its_reason(state: RunState, message: str, said: str) -> None:
    run = made_up_run(state=state).changed(message=message)
    expected = f"run name-r {said} Start another: lipt run start"
    assert how_far(run, "merging") == expected


# A learner's losses are kept at few steps, however many were reported.


def curve_of(*steps: int, num_steps: int) -> LossCurve:
    curve = LossCurve()
    for step in steps:
        curve = curve.after(step, 1 / step, num_steps=num_steps)
    return curve


def test_few_steps_are_all_kept() -> None:
    assert curve_of(1, 2, 2, 5, num_steps=10) == LossCurve((1.0, 0.5, 0.2), (1, 2, 5))


def test_many_steps_are_spaced_evenly_and_end_at_the_newest() -> None:
    for last in (1, 17, 999, 1000):
        steps = curve_of(*range(1, last + 1), num_steps=1000).steps
        assert steps[0] == 1
        assert steps[-1] == last
        assert len(steps) <= MAX_LOSSES
        gaps = [after - before for before, after in itertools.pairwise(steps[:-1])]
        assert all(gap == 56 for gap in gaps)
    assert len(steps) == 19


def test_another_worker_begins_anew_and_an_impossible_step_is_none() -> None:
    first = curve_of(3, 7, num_steps=10)
    assert first.after(2, 4.0, num_steps=10) == LossCurve((4.0,), (2,))
    assert first.after(0, 0.0, num_steps=10) == LossCurve()
    assert first.after(11, 4.0, num_steps=10) == first
    # As many digits as a chart shows.
    assert LossCurve().after(1, 0.123456, num_steps=10).losses == (0.1235,)
