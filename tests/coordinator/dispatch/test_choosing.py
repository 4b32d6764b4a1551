from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import pytest

from lipt.common.states import LearnerState
from lipt.coordinator.dispatch.choosing import (
    Offers,
    Opening,
    Waiting,
    choose_learner,
    openings,
    why_idle,
    why_waiting,
)
from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.dispatch.quarantine import NOTHING_HELD_BACK, HeldBack
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.runs.transitions import after_failure
from lipt.coordinator.state.records import RunRecord

MakeRun = Callable[..., RunRecord]


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
    back: HeldBack = NOTHING_HELD_BACK,
) -> AssignmentKey | None:
    opening = choose_learner(who, openings(map(waiting, runs), reserved, back), alive=lambda: alive)
    return None if opening is None else opening.key


def test_lowest_index_of_the_oldest_run_goes_first(make_run: MakeRun) -> None:
    old = having(make_run("old"), LearnerState.DONE, LearnerState.LEASED)
    assert chosen(worker(), [old, make_run("new")]) == ("old", 2)


def test_a_free_worker_looks_no_further_than_its_learner(make_run: MakeRun) -> None:
    looked_at: list[int] = []

    def watched(runs: Sequence[RunRecord]) -> Iterator[Opening]:
        for opening in openings(map(waiting, runs)):
            looked_at.append(opening.learner.index)
            yield opening

    offers = Offers(watched([make_run(num_learners=1000)]))
    for expected in (0, 1):
        opening = choose_learner(worker(), offers, alive=list)
        assert opening is not None
        assert opening.learner.index == expected
        offers.take(opening)
    assert looked_at == [0, 1]


def test_what_one_worker_may_not_train_is_offered_to_the_next(make_run: MakeRun) -> None:
    offers = Offers(openings([waiting(make_run("mine", model="mine:build", num_learners=1))]))
    assert choose_learner(worker(), offers, alive=list) is None
    opening = choose_learner(worker("w", "mine"), offers, alive=list)
    assert opening is not None
    offers.take(opening)
    assert not offers


def test_learner_that_is_being_handed_out_is_passed_over(make_run: MakeRun) -> None:
    key = chosen(worker(), [make_run()], alive=[], reserved={AssignmentKey("r", 0)})
    assert key == ("r", 1)


def test_failed_learner_goes_to_another_worker_while_there_is_one(make_run: MakeRun) -> None:
    run = make_run(num_learners=1)
    run = run.with_learner(
        after_failure(run.learners[0], worker_id="bad", reason="NaN", max_attempts=3)
    )
    bad, good = worker("bad"), worker("good")
    assert chosen(bad, [run], alive=[good]) is None
    assert chosen(good, [run], alive=[bad]) == ("r", 0)
    assert chosen(bad, [run], alive=[bad]) == ("r", 0)


def test_learner_in_quarantine_goes_last_and_only_when_its_turn_has_come(
    make_run: MakeRun,
) -> None:
    old, new = make_run("old", num_learners=2), make_run("new", num_learners=1)
    keys = frozenset({AssignmentKey("old", 0), AssignmentKey("old", 1)})
    early, due = HeldBack(keys), HeldBack(keys, trials=(AssignmentKey("old", 1),))

    def keys_of(*runs: RunRecord, back: HeldBack) -> list[AssignmentKey]:
        return [opening.key for opening in openings(map(waiting, runs), held_back=back)]

    assert keys_of(old, new, back=early) == [("new", 0)]
    assert keys_of(old, new, back=due) == [("new", 0), ("old", 1)]
    assert chosen(worker(), [old], back=early) is None
    assert chosen(worker(), [old], back=due) == ("old", 1)


def test_worker_is_not_offered_a_run_that_it_found_too_much(make_run: MakeRun) -> None:
    small = replace(worker("small"), declined=frozenset({"r"}))
    assert chosen(small, [make_run()]) is None
    assert chosen(small, [make_run(), make_run("other")]) == ("other", 0)
    # Nor does it keep a learner from one on which it failed.
    failed = make_run(num_learners=1)
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
def test_factory_models_need_a_worker_that_allows_their_module(
    make_run: MakeRun, model: str, allowed: tuple[str, ...], may: bool
) -> None:
    run = make_run(model=model)
    assert (chosen(worker("w", *allowed), [run]) is not None) is may


def test_idle_worker_is_told_of_the_oldest_run_that_it_may_not_train(make_run: MakeRun) -> None:
    mine, other = make_run("mine", model="mine.nets:build"), make_run("other", model="other:build")
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
def test_run_that_waits_in_vain_says_what_its_workers_lack(
    make_run: MakeRun, workers: list[str], busy: list[str], said: str
) -> None:
    run = make_run(model="mine:build")
    alive = [worker(name) for name in workers]
    assert why_waiting(waiting(run), alive=alive, busy=busy) == said
    # One that may is enough, and a run of which all is out or in waits for nobody.
    assert why_waiting(waiting(run), alive=[*alive, worker("good", "mine")], busy=["good"]) == ""
    out = having(run, LearnerState.DONE, LearnerState.LEASED, LearnerState.FAILED)
    assert why_waiting(waiting(out), alive=alive) == ""
