from __future__ import annotations

import asyncio

import pytest

from lipt.common.access import Role
from lipt.common.errors import (
    ForeignWorkerError,
    InvalidRequestError,
    StaleLeaseError,
    UnknownWorkerError,
)
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.access.caller import ANYBODY, Caller
from lipt.coordinator.dispatch import workers as worker_registry
from lipt.coordinator.dispatch.leases import (
    LearnerAssignment,
    LearnerLease,
    LeaseTable,
    RangeAssignment,
    RangeLease,
    forward_clock,
    lease_of,
    require_lease,
    steady_clock,
)
from lipt.coordinator.dispatch.workers import WorkerRecord, WorkerRegistry
from lipt.coordinator.state.records import RunRecord
from tests.clock import Clock
from tests.coordinator.fakes import joined
from tests.coordinator.made_up_runs import leased, made_up_run, status


def lease(index: int = 0, worker_id: str = "w", epoch: int = 1, run_id: str = "r") -> LearnerLease:
    return LearnerLease(LearnerAssignment(run_id, index), epoch, worker_id)


LEASE = lease()


@pytest.fixture
def table(clock: Clock) -> LeaseTable:
    return LeaseTable(30.0, clock)


@pytest.mark.parametrize("text", ["", "r", "r/", "/1", "r/-1", "r/1.5", "r/x", "r/" + "9" * 5000])
def test_malformed_assignment_id_is_refused(text: str) -> None:
    for held in (lease(12, run_id="abc"), RangeLease(RangeAssignment("scan-abc", 12), 1, "w")):
        assert lease_of(str(held.key), 1, "w") == held
        assert type(lease_of(str(held.key), 1, "w")) is type(held)
    with pytest.raises(InvalidRequestError, match="RUN/INDEX"):
        lease_of(text, 1, "w")


def test_queued_learners_of_open_runs_are_listed_in_order(table: LeaseTable) -> None:
    run = follow(table, out(made_up_run(num_learners=4), 1, "a", 1))
    assert list(table.queued("r")) == [0, 2, 3]
    taken = out(run, 2, "b", 1)
    table.follow(taken, [taken.learners[2]])
    back = taken.with_learner(run.learners[1].changed(status=status(LearnerState.QUEUED)))
    # What has changed comes more than once, after a restart.
    for _ in range(2):
        table.follow(back, [back.learners[1], back.learners[3]])
    assert list(table.queued("r")) == [0, 1, 3]
    table.follow(back.changed(state=RunState.MERGING), ())
    assert list(table.queued("r")) == []


def test_a_lease_expires_and_is_renewed_from_now(table: LeaseTable, clock: Clock) -> None:
    table.renew(LEASE)
    clock.now = 129.9
    assert table.expired() == ()
    clock.now = 200.0
    assert table.expired() == (LEASE,)
    table.extend(LEASE.key, 1.0)
    assert table.expired() == ()
    clock.now = 201.0
    assert table.expired() == (LEASE,)


def out(run: RunRecord, index: int, worker_id: str, epoch: int) -> RunRecord:
    """The run with a learner at a worker, under this epoch."""
    learner = run.learners[index].changed(epoch=epoch - 1)
    return run.with_learner(leased(learner, worker_id))


def follow(table: LeaseTable, run: RunRecord) -> RunRecord:
    table.follow(run, run.learners)
    return run


@pytest.mark.parametrize(("worker", "epoch"), [("other", 2), ("w", 1), ("w", 3)])
def test_only_the_holder_of_the_current_epoch_is_accepted(worker: str, epoch: int) -> None:
    run = out(made_up_run(), 0, "w", 2)
    require_lease(run, lease(epoch=2))
    with pytest.raises(StaleLeaseError, match="its epoch is 2"):
        require_lease(run, lease(0, worker, epoch))
    is_in = run.with_learner(run.learners[0].changed(status=status(LearnerState.DONE)))
    for over in (is_in, run.changed(state=RunState.MERGING)):
        with pytest.raises(StaleLeaseError, match="it is not assigned now"):
            require_lease(over, lease(epoch=2))


def test_leases_follow_the_run_s_record(table: LeaseTable, clock: Clock) -> None:
    run = follow(table, out(out(made_up_run(), 0, "a", 1), 1, "b", 1))
    assert table.holders() == {"a", "b"}
    clock.now = 120.0
    # What is said of a learner that stays out does not renew its lease.
    follow(table, run.with_learner(run.learners[0].changed(message="hello")))
    run = follow(table, out(run, 1, "c", 2))
    assert table.held_by("b", LearnerLease) is None
    assert table.held_by("c", LearnerLease) == lease(1, "c", 2)
    assert table.has(lease(1, "c", 2))
    assert not table.has(lease(1, "b", 1))
    clock.now = 130.0
    assert table.expired() == (lease(0, "a"),)
    follow(table, run.with_learner(run.learners[0].changed(status=status(LearnerState.QUEUED))))
    assert table.holders() == {"c"}


def test_run_s_leases_end_with_its_training(table: LeaseTable) -> None:
    run = follow(table, out(out(made_up_run(), 0, "w", 1), 1, "w", 1))
    follow(table, out(made_up_run("s"), 0, "b", 1))
    # A worker that has two holds the other when one ends.
    assert table.held_by("w", LearnerLease) == lease(0)
    follow(table, run.with_learner(run.learners[0].changed(status=status(LearnerState.DONE))))
    assert table.held_by("w", LearnerLease) == lease(1)
    # None of its learners has changed.
    table.follow(run.changed(state=RunState.CANCELLED), ())
    assert table.holders() == {"b"}
    assert table.held_by("b", LearnerLease) == lease(0, "b", run_id="s")
    assert table.num_learners() == 1


async def test_a_wait_ends_when_a_lease_begins(table: LeaseTable) -> None:
    waiting = asyncio.create_task(table.wait_until_due())
    await asyncio.sleep(0)
    assert not waiting.done()
    table.renew(LEASE)
    await waiting


async def test_no_lease_expires_while_the_coordinator_is_stopped(
    table: LeaseTable, clock: Clock
) -> None:
    table.renew(lease(0))
    clock.now = 129.99
    table.renew(lease(1))
    waiting = asyncio.create_task(table.wait_until_due())
    await asyncio.sleep(0)
    clock.now = 200.0  # it was due at 130
    assert await waiting == pytest.approx(70.0)
    assert table.expired() == ()
    clock.now = 230.0
    assert len(table.expired()) == 2


async def test_a_lease_read_late_has_expired(table: LeaseTable, clock: Clock) -> None:
    table.renew(LEASE)
    clock.now = 140.0  # time that went into other work is no stop
    assert await table.wait_until_due() == 0.0
    clock.now = 129.99
    waiting = asyncio.create_task(table.wait_until_due())
    await asyncio.sleep(0)
    clock.now = 131.0
    assert await waiting == 0.0
    assert table.expired() == (LEASE,)


async def test_a_silent_worker_gets_one_extension(table: LeaseTable, clock: Clock) -> None:
    table.renew(lease(0, "silent"))
    table.renew(lease(1, "heard"))

    async def stop() -> float:
        clock.now += 29.99
        waiting = asyncio.create_task(table.wait_until_due())
        await asyncio.sleep(0)
        clock.now += 60.0
        return await waiting

    assert await stop() > 0.0
    assert table.expired() == ()
    table.renew(lease(1, "heard"))
    assert await stop() > 0.0
    assert table.expired() == (lease(0, "silent"),)


def test_changing_the_system_clock_does_not_affect_leases() -> None:
    wall, monotonic = [1000.0], [5.0]
    now = steady_clock(lambda: wall[0], lambda: monotonic[0])
    assert now() == 1000.0
    wall[0] += 86_400
    monotonic[0] += 2
    assert now() == 1002.0
    wall[0] -= 10 * 86_400
    assert now() == 1002.0


@pytest.fixture
def registry(clock: Clock) -> WorkerRegistry:
    return WorkerRegistry(clock, clock)


def join(
    registry: WorkerRegistry, instance_id: str, *, caller: Caller = ANYBODY, **said: str
) -> WorkerRecord:
    return joined(registry, instance_id, caller=caller, **said)


def test_a_worker_id_cannot_be_taken_over(registry: WorkerRegistry) -> None:
    owner, stranger = (
        Caller(name, name, frozenset({Role.WORKER}), certificate=name)
        for name in ("owner", "stranger")
    )
    worker = join(registry, "a", caller=owner)
    with pytest.raises(ForeignWorkerError, match="is of stranger"):
        join(registry, "a", caller=stranger)
    assert registry.find(worker.worker_id) == worker


def test_a_worker_is_alive_while_it_calls_or_trains(registry: WorkerRegistry, clock: Clock) -> None:
    worker = join(registry, "a")
    clock.now += 90.0
    assert registry.alive(()) == (worker,)
    clock.now += 0.1
    assert registry.alive(()) == ()
    assert registry.alive({worker.worker_id}) == (worker,)
    registry.note_call(worker.worker_id)
    assert [it.worker_id for it in registry.alive(())] == [worker.worker_id]


def test_the_longest_silent_workers_are_removed_first(
    registry: WorkerRegistry, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_registry, "_MAX_WORKERS", 3)
    workers = []
    for name in "abc":
        clock.now += 1.0
        workers.append(join(registry, name))
    registry.note_call(workers[0].worker_id)
    join(registry, "d")
    known = [registry.find(worker.worker_id) is not None for worker in workers]
    assert known == [True, False, True]
    silent = workers[1].worker_id
    assert registry.name(silent) == silent
    with pytest.raises(UnknownWorkerError, match="Register again"):
        registry.note_call(silent)
    assert join(registry, "b").worker_id == silent


def test_a_credential_s_clock_follows_the_wall_clock_but_is_never_set_back() -> None:
    wall, monotonic = [1000.0], [5.0]
    now = forward_clock(lambda: wall[0], lambda: monotonic[0])
    assert now() == 1000.0
    wall[0], monotonic[0] = 1100.0, 15.0  # set forward
    assert now() == 1100.0
    wall[0], monotonic[0] = 400.0, 25.0  # set back
    assert now() == 1020.0
