from __future__ import annotations

from dataclasses import replace

import pytest

from lipt.common.access.roles import Role
from lipt.common.blobs.blob import BlobName
from lipt.common.errors import StaleLeaseError
from lipt.common.observability.logs import EventKind
from lipt.common.states import LearnerState
from lipt.coordinator.access.caller import Binding, Caller
from lipt.coordinator.dispatch.choosing import (
    Waiting,
    choose_learner,
    may_train,
    openings,
    why_idle,
    why_waiting,
)
from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.runs.transitions import Judgement, LearnerResult, Verdict, judge
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.maintenance import needs_of
from lipt.coordinator.state.records import CopyRecord, LearnerRecord, RunRecord
from tests.coordinator.dispatch.conftest import Bench
from tests.coordinator.made_up_runs import made_up_run


def result(content: str) -> LearnerResult:
    return LearnerResult(BlobName.of(content.encode()), 1.0, 1.0, bytes_received=0)


def copy(worker: str, content: str, *, kind: str = "cpu", snapshot: str = "") -> CopyRecord:
    return CopyRecord(
        epoch=1,
        worker_id=f"w-{worker}",
        worker_name=worker,
        party=f"w-{worker}",
        kind=kind,
        result=result(content).blob,
        snapshots=(BlobName.of(snapshot.encode()),) if snapshot else (),
    )


def worker(name: str, *, kind: str = "cpu", caller: Caller | None = None) -> WorkerRecord:
    binding = Binding(caller) if caller else Binding()
    return WorkerRecord(f"w-{name}", name, kind, {}, (), heard_at=0.0, binding=binding)


def twice(run: RunRecord, **learners: object) -> RunRecord:
    """The run with redundancy 2."""
    changed = run.config.learners.model_copy(update={"redundancy": 2, **learners})
    return run.changed(config=run.config.model_copy(update={"learners": changed}))


def waiting(run: RunRecord) -> Waiting:
    return Waiting(run, range(len(run.learners)))


def with_copies(run: RunRecord, index: int, *copies: CopyRecord) -> RunRecord:
    return run.with_learner(run.learners[index].changed(copies=copies))


def test_the_first_is_held_back_and_the_second_that_agrees_is_taken() -> None:
    held = judge((), copy("a", "x"), redundancy=2)
    assert (held.verdict, held.suspects) == (Verdict.HOLD, ())
    assert held.reason.startswith("worker a has handed it in; it waits for another worker")
    assert judge([copy("a", "x")], copy("b", "x"), redundancy=2) == Judgement(Verdict.TAKE)
    # One party does not confirm itself, and snapshots have to agree, too.
    assert judge([copy("a", "x")], copy("a", "x"), redundancy=2).verdict is Verdict.HOLD
    earlier = [copy("a", "x", snapshot="s")]
    assert judge(earlier, copy("b", "x", snapshot="s"), redundancy=2).verdict is Verdict.TAKE
    assert judge(earlier, copy("b", "x", snapshot="t"), redundancy=2).verdict is Verdict.DISAGREE


def test_two_that_disagree_are_both_named_and_a_third_decides() -> None:
    earlier = [copy("a", "x")]
    disputed = judge(earlier, copy("b", "y"), redundancy=2)
    assert (disputed.verdict, disputed.suspects) == (Verdict.DISAGREE, ("a", "b"))
    x, y = (result(content).blob.sha256[:12] for content in "xy")
    assert f"workers a handed in {x}, b handed in {y}" in disputed.reason
    earlier.append(copy("b", "y"))
    settled = judge(earlier, copy("c", "y"), redundancy=2)
    assert (settled.verdict, settled.suspects) == (Verdict.TAKE, ("a",))
    assert settled.reason.startswith(f"workers b and c agree on it, and worker a handed in {x}")
    again = judge(earlier, copy("c", "z"), redundancy=2)
    assert (again.verdict, again.suspects) == (Verdict.DISAGREE, ("a", "b", "c"))


def test_on_two_kinds_of_devices_workers_may_differ_and_are_not_blamed() -> None:
    earlier = [copy("a", "x", kind="cpu")]
    held = judge(earlier, copy("b", "y", kind="H100"), redundancy=2)
    assert (held.verdict, held.suspects) == (Verdict.HOLD, ())
    # Where the bits are the same all the same, there is nothing left to ask.
    assert judge(earlier, copy("b", "x", kind="H100"), redundancy=2).verdict is Verdict.TAKE
    earlier.append(copy("b", "y", kind="H100"))
    settled = judge(earlier, copy("c", "y", kind="H100"), redundancy=2)
    assert (settled.verdict, settled.suspects) == (Verdict.TAKE, ("a",))


def test_never_the_same_party_twice_and_first_the_same_kind_of_device() -> None:
    run = with_copies(twice(made_up_run(num_learners=1)), 0, copy("a", "x"))
    learner = run.learners[0]
    a, b, other = worker("a"), worker("b"), worker("c", kind="H100")
    assert not may_train(a, run, learner, alive=[a, b])
    assert may_train(b, run, learner, alive=[a, b])
    # Of another kind only where nobody of this kind is left.
    assert not may_train(other, run, learner, alive=[a, b, other])
    assert may_train(other, run, learner, alive=[a, other])
    offered = list(openings([waiting(run)], now=0.0))
    assert choose_learner(a, offered, alive=lambda: [a]) is None
    assert choose_learner(b, offered, alive=lambda: [a, b]) == offered[0]


def test_two_processes_with_one_certificate_are_one_party() -> None:
    box = Caller("k", "box", frozenset({Role.WORKER}), certificate="aa")
    first, second = (worker(name, caller=box) for name in "ab")
    assert first.party == second.party == "box"
    held = copy("a", "x").changed(party=first.party)
    run = with_copies(twice(made_up_run(num_learners=1)), 0, held)
    assert not may_train(second, run, run.learners[0], alive=[first, second])
    assert may_train(worker("c"), run, run.learners[0], alive=[])


def test_a_run_says_which_worker_it_waits_for() -> None:
    run = twice(made_up_run(num_learners=2))
    a, b, c = worker("a"), worker("b"), worker("c")
    words = (
        "worker a is not enough: learners.redundancy = 2 wants another, with a certificate or "
        "token of its own where workers have some"
    )
    assert why_waiting(waiting(run), alive=[a]) == words
    assert why_waiting(waiting(run), alive=[a, b]) == ""
    run = with_copies(with_copies(run, 0, copy("a", "x")), 1, copy("a", "x"), copy("b", "y"))
    held = "; 1 of its learners held back for it"
    assert why_waiting(waiting(run), alive=[a, b]) == (
        "worker a and 1 more are not enough: learners.redundancy = 2 wants another, with a "
        f"certificate or token of its own where workers have some, on such a device: cpu{held}"
    )
    assert why_waiting(waiting(run), alive=[a, b, c]) == ""
    assert why_idle(a, [waiting(run)]) == (
        "has trained all that waits of run name-r, and learners.redundancy = 2 wants another "
        "worker to train it, too"
    )
    assert why_idle(b, [waiting(run)]) == why_idle(c, [waiting(run)]) == ""
    # Without redundancy one worker is enough.
    assert why_waiting(waiting(made_up_run()), alive=[a]) == ""


def test_what_is_held_back_is_not_taken_for_rubbish() -> None:
    held = copy("a", "x", snapshot="s")
    run = with_copies(twice(made_up_run(num_learners=1)), 0, held)

    def needed(run: RunRecord) -> set[BlobName]:
        return {need.blob for need in needs_of(run)}

    assert set(held.files) <= needed(run)
    taken = run.learners[0].changed(state=LearnerState.DONE, result=result("y").blob)
    assert not set(held.files) & needed(run.with_learner(taken))


async def take(bench: Bench, name: str) -> tuple[AssignmentKey, int] | None:
    granted = await bench.acquire(bench.join(name))
    return granted and (AssignmentKey("r", granted[1].index), granted[1].epoch)


async def train(bench: Bench, name: str, content: str) -> int:
    """Take a learner and hand this in; its epoch."""
    taken = await take(bench, name)
    assert taken is not None
    await bench.dispatcher.commit(bench.join(name), *taken, result(content))
    return taken[1]


def learner_of(bench: Bench) -> LearnerRecord:
    return bench.store.find("r").learners[0]


@pytest.fixture
async def bench(database: Database) -> Bench:
    bench = Bench(database)
    await bench.store.add(twice(made_up_run(num_learners=1)))
    return bench


@pytest.mark.parametrize("restarting", [False, True])
async def test_a_learner_is_in_once_another_hands_in_the_same(
    bench: Bench, restarting: bool
) -> None:
    first = await train(bench, "a", "x")
    assert (learner_of(bench).state, learner_of(bench).result) == (LearnerState.QUEUED, None)
    if restarting:
        await bench.restart()
    # Its answer was lost, so it says it again; and there is nothing more for it.
    key = AssignmentKey("r", 0)
    await bench.dispatcher.commit(bench.join("a"), key, first, result("x"))
    assert await take(bench, "a") is None
    taken = await take(bench, "b")
    assert taken is not None
    assert taken == (key, first + 1)
    # Nor does saying it again end the lease of another.
    await bench.dispatcher.commit(bench.join("a"), key, first, result("x"))
    with pytest.raises(StaleLeaseError):
        await bench.dispatcher.commit(bench.join("a"), key, first, result("z"))
    if restarting:
        await bench.restart()
    await bench.dispatcher.commit(bench.join("b"), *taken, result("x"))
    assert (learner_of(bench).state, learner_of(bench).result) == (
        LearnerState.DONE,
        result("x").blob,
    )
    assert [held.worker_name for held in learner_of(bench).copies] == ["a"]
    assert learner_of(bench).account == ""
    assert bench.events.count(EventKind.LEARNER_DISPUTED) == 0


@pytest.mark.parametrize("liar", ["a", "b"])
async def test_a_third_worker_settles_it_and_the_other_is_named(bench: Bench, liar: str) -> None:
    for name in "ab":
        await train(bench, name, "lie" if name == liar else "truth")
    assert learner_of(bench).state is LearnerState.QUEUED
    assert bench.events.count(EventKind.LEARNER_DISPUTED, "") == 1
    assert "workers a handed in" in learner_of(bench).account
    assert ", b handed in" in learner_of(bench).account
    await bench.restart()
    for name in "ab":
        assert await take(bench, name) is None
    await train(bench, "c", "truth")
    assert (learner_of(bench).state, learner_of(bench).result) == (
        LearnerState.DONE,
        result("truth").blob,
    )
    other = "b" if liar == "a" else "a"
    assert (
        f"workers {other} and c agree on it, and worker {liar} handed" in learner_of(bench).account
    )
    assert bench.events.count(EventKind.LEARNER_DISPUTED, "settled") == 1


async def test_a_learner_that_no_two_agree_on_fails_as_often_as_one_may(bench: Bench) -> None:
    for name in "abcde":
        assert learner_of(bench).state is LearnerState.QUEUED
        await train(bench, name, name)
    # The first contradicted nobody, the second is why there was a third; max_attempts is 3.
    assert (learner_of(bench).state, learner_of(bench).failures) == (LearnerState.FAILED, 3)


async def test_a_copy_is_kept_with_its_snapshots(bench: Bench) -> None:
    taken = await take(bench, "a")
    assert taken is not None
    handed_in = replace(result("x"), snapshots=(BlobName.of(b"s"),))
    await bench.dispatcher.commit(bench.join("a"), *taken, handed_in)
    assert learner_of(bench).copies[0].files == (BlobName.of(b"s"), result("x").blob)
