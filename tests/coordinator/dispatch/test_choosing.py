from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import pytest

from lipt.common.states import LearnerState
from lipt.coordinator.dispatch.choosing import (
    Offers,
    Opening,
    Waiting,
    choose_learner,
    ends_in_a_row,
    ends_of_run,
    openings,
    tried_again_at,
    why_idle,
    why_quarantined,
    why_waiting,
)
from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.runs.transitions import after_failure, requeued
from lipt.coordinator.state.records import RunRecord, SilentEnd
from tests.coordinator.made_up_runs import made_up_run

NOW = 1000.0


def worker(worker_id: str = "w", *modules: str) -> WorkerRecord:
    return WorkerRecord(worker_id, worker_id, "cpu", {}, modules, heard_at=0.0)


def having(run: RunRecord, *states: LearnerState, message: str = "") -> RunRecord:
    for index, state in enumerate(states):
        learner = run.learners[index].changed(state=state, message=message, worker_name="box")
        run = run.with_learner(learner)
    return run


def waiting(run: RunRecord) -> Waiting:
    queued = [it.index for it in run.learners if it.state is LearnerState.QUEUED]
    return Waiting(run, queued)


def chosen(
    who: WorkerRecord,
    runs: Sequence[RunRecord],
    *,
    alive: Sequence[WorkerRecord] = (),
    reserved: Collection[AssignmentKey] = (),
) -> AssignmentKey | None:
    found = openings(map(waiting, runs), now=NOW, reserved=reserved)
    opening = choose_learner(who, found, alive=lambda: alive)
    return None if opening is None else opening.key


def test_lowest_index_of_the_oldest_run_goes_first_unless_it_is_being_handed_out() -> None:
    old = having(made_up_run("old"), LearnerState.DONE)
    runs = [old, made_up_run("new")]
    assert chosen(worker(), runs) == ("old", 1)
    assert chosen(worker(), runs, reserved={AssignmentKey("old", 1)}) == ("old", 2)


def test_a_free_worker_looks_no_further_than_its_learner() -> None:
    looked_at: list[int] = []

    def watched(runs: Sequence[RunRecord]) -> Iterator[Opening]:
        for opening in openings(map(waiting, runs), now=NOW):
            looked_at.append(opening.learner.index)
            yield opening

    offers = Offers(watched([made_up_run(num_learners=1000)]))
    for expected in (0, 1):
        opening = choose_learner(worker(), offers, alive=list)
        assert opening is not None
        assert opening.learner.index == expected
        offers.take(opening)
    assert looked_at == [0, 1]


def test_what_one_worker_may_not_train_is_offered_to_the_next() -> None:
    run = made_up_run("mine", model="mine:build", num_learners=1)
    offers = Offers(openings([waiting(run)], now=NOW))
    assert choose_learner(worker(), offers, alive=list) is None
    opening = choose_learner(worker("w", "mine"), offers, alive=list)
    assert opening is not None
    offers.take(opening)
    assert not offers


def test_failed_learner_goes_to_another_worker_while_there_is_one() -> None:
    run = made_up_run(num_learners=1)
    run = run.with_learner(
        after_failure(run.learners[0], worker_id="bad", reason="NaN", max_attempts=3)
    )
    bad, good = worker("bad"), worker("good")
    assert chosen(bad, [run], alive=[good]) is None
    assert chosen(good, [run], alive=[bad]) == ("r", 0)
    assert chosen(bad, [run], alive=[bad]) == ("r", 0)


def ended(run: RunRecord, *ends: tuple[int, int], index: int = 0) -> RunRecord:
    """The run after workers w0, w1, ... fell silent over a learner at (step, second)."""
    learner = run.learners[index]
    for number, (step, at) in enumerate(ends):
        end = SilentEnd(worker_id=f"w{number}", worker_name=f"vm-{number}", step=step, at=at)
        learner = requeued(learner, "silent", end)
    return run.with_learner(learner)


SILENT = [f"w{number}" for number in range(20)]


@pytest.mark.parametrize(
    ("steps", "suspected"),
    [
        ([], False),
        ([0, 0], False),
        ([0, 0, 0], True),
        ([4, 4, 4], True),
        # A machine goes away at any step, a learner that ends its worker always at the same.
        ([0, 3, 0], False),
        ([5, 0, 0, 0], True),
    ],
)
def test_learner_is_in_quarantine_after_three_silent_ends_in_a_row_at_one_step(
    steps: list[int], suspected: bool
) -> None:
    run = ended(made_up_run(), *((step, place) for place, step in enumerate(steps)))
    ends = ends_in_a_row(run.learners[0], SILENT)
    assert ends == ends_of_run(run, SILENT)
    assert (tried_again_at(ends) is not None) is suspected
    assert (why_quarantined(waiting(run), SILENT) != "") is suspected
    # One of the last three was heard again: it was not ended.
    others = [name for name in SILENT if name != f"w{len(steps) - 1}"]
    assert tried_again_at(ends_in_a_row(run.learners[0], others)) is None


def test_one_that_failed_with_a_reason_has_not_ended_its_worker() -> None:
    run = ended(made_up_run(), (0, 1), (0, 2))
    failed = after_failure(run.learners[0], worker_id="w", reason="NaN", max_attempts=9)
    run = ended(run.with_learner(failed), (0, 3))
    assert tried_again_at(ends_in_a_row(run.learners[0], SILENT)) is None


@pytest.mark.parametrize(("num_ends", "pause"), [(3, 60), (4, 120), (5, 240), (8, 1920), (9, 3600)])
def test_learner_in_quarantine_is_tried_after_pauses_that_double(num_ends: int, pause: int) -> None:
    run = ended(made_up_run(), *((0, place) for place in range(num_ends)))
    assert tried_again_at(ends_of_run(run, SILENT)) == num_ends - 1 + pause


def test_learner_in_quarantine_goes_last_and_only_when_its_turn_has_come() -> None:
    old = ended(made_up_run("old", num_learners=3), (0, 1), (0, 2), (0, 3))
    old = old.with_learner(old.learners[2].changed(state=LearnerState.DONE))
    runs = [Waiting(old, range(2)), waiting(made_up_run("new", num_learners=1))]

    def keys_at(now: float) -> list[AssignmentKey]:
        return [opening.key for opening in openings(runs, now=now, silent=SILENT)]

    assert keys_at(62.9) == [("old", 1), ("new", 0)]
    assert keys_at(63.0) == [("old", 1), ("new", 0), ("old", 0)]


def test_silent_ends_of_a_run_count_together_until_one_of_its_learners_is_in() -> None:
    run = made_up_run("old", num_learners=4)
    for index, at in enumerate((5, 6, 7)):
        run = ended(run, (0, at), index=index)
    run = ended(run, (0, 4), index=1)

    def keys_at(now: float, run: RunRecord, *reserved: AssignmentKey) -> list[int]:
        found = openings([waiting(run)], now=now, silent=SILENT, reserved=reserved)
        return [opening.learner.index for opening in found]

    # All are held back; the one that ended most workers is tried alone, after a pause.
    assert keys_at(126.9, run) == []
    assert keys_at(127.0, run) == [1]
    assert keys_at(127.0, run, AssignmentKey("old", 1)) == []
    tried = run.with_learner(run.learners[1].changed(state=LearnerState.LEASED))
    assert keys_at(9e9, tried) == []
    assert "4 learners are in quarantine: 4 workers" in why_quarantined(waiting(run), SILENT)
    is_in = run.with_learner(run.learners[3].changed(state=LearnerState.DONE))
    assert [*openings([Waiting(is_in, range(3))], now=0.0, silent=SILENT)]
    assert why_quarantined(Waiting(is_in, range(3)), SILENT) == ""


def test_run_names_its_learner_in_quarantine_and_the_last_workers() -> None:
    run = ended(made_up_run(), (7, 1), (7, 2), (7, 3), (7, 4))
    said = why_waiting(waiting(run), alive=[worker()], silent=SILENT)
    assert said.startswith(
        "3 learners are in quarantine: 4 workers in a row (last vm-1, vm-2, vm-3)"
    )
    assert "fell silent after step 7" in said


def test_worker_is_not_offered_a_run_that_it_found_too_much() -> None:
    small = replace(worker("small"), declined=frozenset({"r"}))
    assert chosen(small, [made_up_run()]) is None
    assert chosen(small, [made_up_run(), made_up_run("other")]) == ("other", 0)
    # Nor does it keep a learner from one on which it failed.
    failed = made_up_run(num_learners=1)
    failed = failed.with_learner(
        after_failure(failed.learners[0], worker_id="w", reason="NaN", max_attempts=3)
    )
    assert chosen(worker(), [failed], alive=[small]) == ("r", 0)


@pytest.mark.parametrize(
    ("model", "allowed", "may"),
    [
        ("resnet8", (), True),
        ("torchvision:resnet18", (), True),
        ("mine.models:build", (), False),
        ("mine.models:build", ("mine.models",), True),
        ("mine.models:build", ("mine",), True),
        ("mine.models:build", ("min",), False),
    ],
)
def test_factory_models_need_their_module(model: str, allowed: tuple[str, ...], may: bool) -> None:
    run = made_up_run(model=model)
    assert (chosen(worker("w", *allowed), [run]) is not None) is may


def test_idle_worker_is_told_of_the_oldest_run_that_it_may_not_train() -> None:
    mine, other = (
        made_up_run("mine", model="mine.nets:build"),
        made_up_run("other", model="other:build"),
    )
    expected = (
        "cannot train run name-mine, for it does not allow `mine.nets` (--allow-module mine.nets)"
    )
    assert why_idle(worker(), map(waiting, [mine, other])) == expected
    assert why_idle(worker("w", "mine"), [waiting(mine)]) == ""
    # It has something to do, or there is nothing for anybody.
    assert why_idle(worker("w", "other"), map(waiting, [mine, other])) == ""
    assert why_idle(worker(), [waiting(having(mine, *[LearnerState.LEASED] * 3))]) == ""
    assert why_idle(worker(), []) == ""


@pytest.mark.parametrize(
    ("workers", "busy", "said"),
    [
        (["vm"], [], "worker vm is idle, but does not allow `mine` (--allow-module mine)"),
        (["vm"], ["vm"], "worker vm does not allow `mine` (--allow-module mine)"),
        # An idle one is named before those that are not.
        (
            ["a", "b", "c"],
            ["a"],
            "workers b and 2 more are idle, but do not allow `mine` (--allow-module mine)",
        ),
        ([], [], ""),
    ],
)
def test_waiting_run_says_what_workers_lack(workers: list[str], busy: list[str], said: str) -> None:
    run = made_up_run(model="mine:build")
    alive = [worker(name) for name in workers]
    assert why_waiting(waiting(run), alive=alive, busy=busy) == said
    # One that may is enough, and a run of which all is out or in waits for nobody.
    assert why_waiting(waiting(run), alive=[*alive, worker("good", "mine")], busy=["good"]) == ""
    out = having(run, LearnerState.DONE, LearnerState.LEASED, LearnerState.FAILED)
    assert why_waiting(waiting(out), alive=alive) == ""
