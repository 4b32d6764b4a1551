from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from lipt.common.access import Role
from lipt.common.blobs.blob import BlobName
from lipt.common.errors import StaleLeaseError
from lipt.common.observability.logs import EventKind
from lipt.common.states import LearnerState
from lipt.coordinator.access.caller import ANYBODY, Caller
from lipt.coordinator.dispatch.leases import LearnerAssignment, LearnerLease
from lipt.coordinator.dispatch.policy import (
    QueuedLearners,
    candidates,
    choose_learner,
    consecutive_ends,
    consecutive_ends_of_run,
    idle_reason,
    may_confirm,
    next_trial_at,
    quarantine_reason,
    waiting_reason,
)
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.runs.transitions import (
    Verification,
    after_failure,
    requeued,
    verify,
    with_result,
)
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.maintenance import needs_of
from lipt.coordinator.state.records import (
    LearnerRecord,
    LearnerResult,
    RunRecord,
    SilentEnd,
    UnconfirmedResult,
)
from tests.coordinator.dispatch.conftest import Bench
from tests.coordinator.made_up_runs import error, having, holder, made_up_run, status

NOW = 1000.0


def worker(
    name: str = "w", *modules: str, kind: str = "cpu", caller: Caller = ANYBODY
) -> WorkerRecord:
    return WorkerRecord(name, name, kind, {}, modules, heard_at=0.0, caller=caller)


def waiting(run: RunRecord) -> QueuedLearners:
    queued = [it.index for it in run.learners if it.state is LearnerState.QUEUED]
    return QueuedLearners(run, queued)


def chosen(
    who: WorkerRecord,
    runs: Sequence[RunRecord],
    *,
    alive: Sequence[WorkerRecord] = (),
    reserved: Collection[LearnerAssignment] = (),
) -> LearnerAssignment | None:
    found = candidates(map(waiting, runs), now=NOW, reserved=reserved)
    candidate = choose_learner(who, found, alive=lambda: alive)
    return None if candidate is None else candidate.key


def test_the_lowest_unreserved_index_of_the_oldest_run_goes_first() -> None:
    old = having(made_up_run("old"), LearnerState.DONE)
    runs = [old, made_up_run("new")]
    assert chosen(worker(), runs) == ("old", 1)
    assert chosen(worker(), runs, reserved={LearnerAssignment("old", 1)}) == ("old", 2)


def test_a_failed_learner_prefers_another_worker() -> None:
    run = made_up_run(num_learners=1)
    run = run.with_learner(
        after_failure(run.learners[0], error("NaN"), holder=holder("bad"), max_attempts=3)
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
    ends = consecutive_ends(run.learners[0], SILENT)
    assert ends == consecutive_ends_of_run(run, SILENT)
    assert (next_trial_at(ends) is not None) is suspected
    assert (quarantine_reason(waiting(run), SILENT) != "") is suspected
    # One of the last three was heard again: it was not ended.
    others = [name for name in SILENT if name != f"w{len(steps) - 1}"]
    assert next_trial_at(consecutive_ends(run.learners[0], others)) is None


def test_a_failure_with_a_reason_is_not_a_silent_end() -> None:
    run = ended(made_up_run(), (0, 1), (0, 2))
    failed = after_failure(run.learners[0], error("NaN"), holder=holder("w"), max_attempts=9)
    run = ended(run.with_learner(failed), (0, 3))
    assert next_trial_at(consecutive_ends(run.learners[0], SILENT)) is None


@pytest.mark.parametrize(("num_ends", "pause"), [(3, 60), (4, 120), (5, 240), (8, 1920), (9, 3600)])
def test_a_quarantined_learner_is_tried_after_doubling_pauses(num_ends: int, pause: int) -> None:
    run = ended(made_up_run(), *((0, place) for place in range(num_ends)))
    assert next_trial_at(consecutive_ends_of_run(run, SILENT)) == num_ends - 1 + pause


def test_a_quarantined_learner_goes_last_and_when_due() -> None:
    old = ended(made_up_run("old", num_learners=3), (0, 1), (0, 2), (0, 3))
    old = old.with_learner(old.learners[2].changed(status=status(LearnerState.DONE)))
    runs = [QueuedLearners(old, range(2)), waiting(made_up_run("new", num_learners=1))]

    def keys_at(now: float) -> list[LearnerAssignment]:
        return [candidate.key for candidate in candidates(runs, now=now, silent=SILENT)]

    assert keys_at(62.9) == [("old", 1), ("new", 0)]
    assert keys_at(63.0) == [("old", 1), ("new", 0), ("old", 0)]


def test_silent_ends_of_a_run_add_up_until_its_first_result() -> None:
    run = made_up_run("old", num_learners=4)
    for index, at in enumerate((5, 6, 7)):
        run = ended(run, (0, at), index=index)
    run = ended(run, (0, 4), index=1)

    def keys_at(now: float, run: RunRecord, *reserved: LearnerAssignment) -> list[int]:
        found = candidates([waiting(run)], now=now, silent=SILENT, reserved=reserved)
        return [candidate.learner.index for candidate in found]

    # All are held back; the one that ended most workers is tried alone, after a pause.
    assert keys_at(126.9, run) == []
    assert keys_at(127.0, run) == [1]
    assert keys_at(127.0, run, LearnerAssignment("old", 1)) == []
    tried = run.with_learner(run.learners[1].changed(status=status(LearnerState.LEASED)))
    assert keys_at(9e9, tried) == []
    assert "4 learners are in quarantine: 4 workers" in quarantine_reason(waiting(run), SILENT)
    has_result = run.with_learner(run.learners[3].changed(status=status(LearnerState.DONE)))
    assert [*candidates([QueuedLearners(has_result, range(3))], now=0.0, silent=SILENT)]
    assert quarantine_reason(QueuedLearners(has_result, range(3)), SILENT) == ""


def test_a_run_names_its_quarantined_learner_and_the_last_workers() -> None:
    run = ended(made_up_run(), (7, 1), (7, 2), (7, 3), (7, 4))
    said = waiting_reason(waiting(run), alive=[worker()], silent=SILENT)
    assert said.startswith(
        "3 learners are in quarantine: 4 workers in a row (last vm-1, vm-2, vm-3)"
    )
    assert "fell silent after step 7" in said


def test_a_worker_is_not_offered_a_run_above_its_limits() -> None:
    small = replace(worker("small"), declined=frozenset({"r"}))
    assert chosen(small, [made_up_run()]) is None
    assert chosen(small, [made_up_run(), made_up_run("other")]) == ("other", 0)
    # Nor does it keep a learner from one on which it failed.
    failed = made_up_run(num_learners=1)
    failed = failed.with_learner(
        after_failure(failed.learners[0], error("NaN"), holder=holder("w"), max_attempts=3)
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
        ("causal:/models/smol", (), False),
        ("causal:/models/smol", ("causal:/models",), True),
        ("causal:/models/smol", ("models", "causal:/model"), False),
    ],
)
def test_factory_models_need_their_module(model: str, allowed: tuple[str, ...], may: bool) -> None:
    run = made_up_run(model=model)
    assert (chosen(worker("w", *allowed), [run]) is not None) is may


def test_the_idle_reason_is_of_the_oldest_run() -> None:
    mine = made_up_run("mine", model="mine.nets:build")
    other = made_up_run("other", model="other:build")
    expected = (
        "cannot train run name-mine: it does not allow `mine.nets` (--allow-module mine.nets)"
    )
    assert idle_reason(worker(), map(waiting, [mine, other])) == expected
    assert idle_reason(worker("w", "mine"), [waiting(mine)]) == ""
    # It has something to do, or there is nothing for anybody.
    assert idle_reason(worker("w", "other"), map(waiting, [mine, other])) == ""
    assert idle_reason(worker(), [waiting(having(mine, *[LearnerState.LEASED] * 3))]) == ""
    assert idle_reason(worker(), []) == ""


def test_the_waiting_reason_names_what_workers_lack() -> None:
    run = waiting(made_up_run(model="mine:build"))
    lacks = "worker a does not allow `mine` (--allow-module mine)"
    a, b = worker("a"), worker("b")
    assert waiting_reason(run, alive=[a]) == lacks
    assert waiting_reason(run, alive=[b, a]) == f"{lacks}, and 1 more cannot train it either"
    # One able worker is enough; without workers there is no reason.
    assert waiting_reason(run, alive=[a, worker("good", "mine")]) == ""
    assert waiting_reason(run, alive=[]) == ""


def result(content: str) -> LearnerResult:
    return LearnerResult(blob=BlobName.of(content.encode()))


def sent(worker: str, content: str, *, kind: str = "cpu", snapshot: str = "") -> UnconfirmedResult:
    return UnconfirmedResult(
        epoch=1,
        holder=holder(worker, kind=kind),
        result=result(content).changed(
            snapshots=(BlobName.of(snapshot.encode()),) if snapshot else ()
        ),
    )


def twice(run: RunRecord, **learners: object) -> RunRecord:
    changed = run.config.learners.model_copy(update={"redundancy": 2, **learners})
    return run.changed(config=run.config.model_copy(update={"learners": changed}))


def with_held(run: RunRecord, index: int, *results: UnconfirmedResult) -> RunRecord:
    return run.with_learner(run.learners[index].changed(unconfirmed=results))


def test_with_redundancy_the_second_equal_result_is_accepted() -> None:
    held = verify((), sent("a", "x"), redundancy=2)
    assert (held.taken, held.suspects) == (False, ())
    assert held.reason.startswith("worker a has handed it in; it waits for another worker")
    assert verify([sent("a", "x")], sent("b", "x"), redundancy=2) == Verification(taken=True)
    # One credential does not confirm itself, and snapshots have to agree, too.
    assert not verify([sent("a", "x")], sent("a", "x"), redundancy=2).taken
    earlier = [sent("a", "x", snapshot="s")]
    assert verify(earlier, sent("b", "x", snapshot="s"), redundancy=2).taken
    assert verify(earlier, sent("b", "x", snapshot="t"), redundancy=2).suspects == ("a", "b")


def test_a_learner_in_doubt_keeps_its_snapshots() -> None:
    snapshots = (BlobName.of(b"early"), BlobName.of(b"late"))
    learner = twice(made_up_run(num_learners=1)).learners[0]
    handed_in = result("x").changed(snapshots=snapshots)
    kept, _ = with_result(learner, handed_in, holder=holder(), redundancy=2, max_attempts=1)
    assert [held.result.snapshots for held in kept.unconfirmed] == [snapshots]


def test_two_different_results_are_reported_and_a_third_decides() -> None:
    earlier = [sent("a", "x")]
    disputed = verify(earlier, sent("b", "y"), redundancy=2)
    assert (disputed.taken, disputed.suspects) == (False, ("a", "b"))
    x, y = (result(content).blob.sha256[:12] for content in "xy")
    assert f"workers a submitted {x}, b submitted {y}" in disputed.reason
    earlier.append(sent("b", "y"))
    settled = verify(earlier, sent("c", "y"), redundancy=2)
    assert (settled.taken, settled.suspects) == (True, ("a",))
    assert settled.reason.startswith(f"workers b and c agree on it, and worker a submitted {x}")
    again = verify(earlier, sent("c", "z"), redundancy=2)
    assert (again.taken, again.suspects) == (False, ("a", "b", "c"))


def test_on_two_kinds_of_devices_workers_may_differ_and_are_not_blamed() -> None:
    earlier = [sent("a", "x", kind="cpu")]
    held = verify(earlier, sent("b", "y", kind="H100"), redundancy=2)
    assert (held.taken, held.suspects) == (False, ())
    # Equal bits from other devices confirm a result, too.
    assert verify(earlier, sent("b", "x", kind="H100"), redundancy=2).taken
    earlier.append(sent("b", "y", kind="H100"))
    settled = verify(earlier, sent("c", "y", kind="H100"), redundancy=2)
    assert (settled.taken, settled.suspects) == (True, ("a",))


def test_redundant_learners_go_to_another_credential_on_the_same_kind_of_device() -> None:
    run = with_held(twice(made_up_run(num_learners=1)), 0, sent("a", "x"))
    learner = run.learners[0]
    a, b, other = worker("a"), worker("b"), worker("c", kind="H100")
    assert not may_confirm(a, run, learner, alive=[a, b])
    assert may_confirm(b, run, learner, alive=[a, b])
    # Another kind of device only if no worker of this kind is left.
    assert not may_confirm(other, run, learner, alive=[a, b, other])
    assert may_confirm(other, run, learner, alive=[a, other])
    offered = list(candidates([waiting(run)], now=0.0))
    assert choose_learner(a, offered, alive=lambda: [a]) is None
    assert choose_learner(b, offered, alive=lambda: [a, b]) == offered[0]


def test_two_processes_with_one_certificate_are_one_credential() -> None:
    box = Caller("k", "box", frozenset({Role.WORKER}), certificate="aa")
    first, second = (worker(name, caller=box) for name in "ab")
    assert first.credential == second.credential == "box"
    held = sent("a", "x")
    held = held.changed(holder=held.holder.changed(credential=first.credential))
    run = with_held(twice(made_up_run(num_learners=1)), 0, held)
    assert not may_confirm(second, run, run.learners[0], alive=[first, second])
    assert may_confirm(worker("c"), run, run.learners[0], alive=[])


def test_the_waiting_reason_names_the_missing_second_worker() -> None:
    run = twice(made_up_run(num_learners=2))
    a, b, c = worker("a"), worker("b"), worker("c")
    words = "with its own certificate or token if workers have any"
    wants = "learners.redundancy = 2 needs another worker for"
    assert waiting_reason(waiting(run), alive=[a]) == f"{wants} 2 learners, {words}"
    assert waiting_reason(waiting(run), alive=[a, b]) == ""
    run = with_held(with_held(run, 0, sent("a", "x")), 1, sent("a", "x"), sent("b", "y"))
    on_such = f"{wants} 1 learners, {words}, on such a device: cpu"
    assert waiting_reason(waiting(run), alive=[a, b]) == on_such
    assert waiting_reason(waiting(run), alive=[a, b, c]) == ""
    assert idle_reason(a, [waiting(run)]) == (
        "has trained every queued learner of run name-r, and learners.redundancy = 2 needs "
        "another worker"
    )
    assert idle_reason(b, [waiting(run)]) == idle_reason(c, [waiting(run)]) == ""
    # Without redundancy one worker is enough.
    assert waiting_reason(waiting(made_up_run()), alive=[a]) == ""


def test_unconfirmed_results_are_not_collected() -> None:
    held = sent("a", "x", snapshot="s")
    run = with_held(twice(made_up_run(num_learners=1)), 0, held)

    def needed(run: RunRecord) -> set[BlobName]:
        return {need.blob for need in needs_of(run)}

    assert set(held.result.files) <= needed(run)
    taken = run.learners[0].changed(status=status(LearnerState.DONE, result("y")))
    assert not set(held.result.files) & needed(run.with_learner(taken))


async def train(bench: Bench, name: str, content: str) -> LearnerLease:
    lease = await bench.take(bench.join(name))
    await bench.dispatcher.commit(lease, result(content))
    return lease


def learner_of(bench: Bench) -> LearnerRecord:
    return bench.store.find("r").learners[0]


def outcome(bench: Bench) -> tuple[LearnerState, BlobName | None]:
    learner = learner_of(bench)
    return learner.state, learner.result.blob if learner.result else None


@pytest.fixture
async def bench(database: Database) -> Bench:
    bench = Bench(database)
    await bench.store.add(twice(made_up_run(num_learners=1)))
    return bench


@pytest.mark.parametrize("restarting", [False, True])
async def test_a_learner_is_done_after_an_equal_second_result(
    bench: Bench, restarting: bool
) -> None:
    first = await train(bench, "a", "x")
    assert outcome(bench) == (LearnerState.QUEUED, None)
    if restarting:
        await bench.restart()
    # Its answer was lost, so it says it again; and there is nothing more for it.
    bench.join("a")
    await bench.dispatcher.commit(first, result("x"))
    assert await bench.acquire(first.worker_id) is None
    second = await bench.take(bench.join("b"))
    assert (second.key, second.epoch) == (first.key, first.epoch + 1)
    # Nor does saying it again end the lease of another.
    await bench.dispatcher.commit(first, result("x"))
    with pytest.raises(StaleLeaseError):
        await bench.dispatcher.commit(first, result("z"))
    if restarting:
        await bench.restart()
    await bench.dispatcher.commit(second, result("x"))
    assert outcome(bench) == (LearnerState.DONE, result("x").blob)
    assert [held.holder.worker_name for held in learner_of(bench).unconfirmed] == ["a"]
    assert learner_of(bench).account == ""
    assert bench.events.count(EventKind.LEARNER_DISPUTED) == 0


@pytest.mark.parametrize("liar", ["a", "b"])
async def test_a_third_worker_decides_and_the_faulty_worker_is_named(
    bench: Bench, liar: str
) -> None:
    for name in "ab":
        await train(bench, name, "lie" if name == liar else "truth")
    assert learner_of(bench).state is LearnerState.QUEUED
    assert bench.events.count(EventKind.LEARNER_DISPUTED, "") == 1
    assert "workers a submitted" in learner_of(bench).account
    assert ", b submitted" in learner_of(bench).account
    await bench.restart()
    for name in "ab":
        assert await bench.acquire(bench.join(name)) is None
    await train(bench, "c", "truth")
    assert outcome(bench) == (LearnerState.DONE, result("truth").blob)
    other = "b" if liar == "a" else "a"
    assert (
        f"workers {other} and c agree on it, and worker {liar} submitted"
        in learner_of(bench).account
    )
    assert bench.events.count(EventKind.LEARNER_DISPUTED, "settled") == 1


async def test_a_learner_without_two_equal_results_fails_after_max_attempts(bench: Bench) -> None:
    for name in "abcde":
        assert learner_of(bench).state is LearnerState.QUEUED
        await train(bench, name, name)
    # The first contradicted no result, the second caused a third; max_attempts is 3.
    assert (learner_of(bench).state, learner_of(bench).failures) == (LearnerState.FAILED, 3)


def test_a_learner_of_a_workers_own_source_goes_to_its_holder_alone() -> None:
    run = made_up_run(num_learners=2)
    run = run.with_learner(run.learners[1].changed(shard=None, own_source="clinic"))
    trusted = Caller("token:1", "one", frozenset({Role.WORKER}), source="clinic")
    held = replace(worker("held", caller=trusted), source="clinic")
    # Its token names another source by now.
    former = replace(worker("former", caller=replace(trusted, source="web")), source="clinic")
    own = {LearnerAssignment("r", 0)}
    assert chosen(held, [run], reserved=own) == ("r", 1)
    for other in (former, worker("other", caller=trusted)):
        assert chosen(other, [run]) == ("r", 0)
        assert chosen(other, [run], reserved=own) is None
    # A worker without the data does not keep the holder from another try.
    failed = run.with_learner(run.learners[1].changed(failed_on=("held",)))
    assert chosen(held, [failed], alive=[worker("other")], reserved=own) == ("r", 1)
    assert waiting_reason(waiting(run), alive=[former]).startswith("no worker holds the data of cl")
    small = replace(held, name="small", declined=frozenset({run.run_id}))
    reason = waiting_reason(waiting(run), alive=[small, worker("other")])
    assert reason.startswith("worker small, which holds the source clinic, does not have room")
    assert not waiting_reason(waiting(run), alive=[small, held])
    assert waiting_reason(waiting(run), alive=[held]) == ""
    alone = QueuedLearners(run, [1])
    assert idle_reason(former, [alone]).endswith("it holds none of the sources that wait")
