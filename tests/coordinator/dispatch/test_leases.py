from __future__ import annotations

import asyncio

import pytest

from lipt.common.errors import StaleLeaseError
from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.dispatch.leases import LeaseTable, steady_clock
from tests.clock import Clock

KEY = AssignmentKey("r", 0)


@pytest.fixture
def table(clock: Clock) -> LeaseTable:
    return LeaseTable(30.0, clock)


def test_lease_ends_when_its_duration_has_passed(table: LeaseTable, clock: Clock) -> None:
    table.grant(KEY, "w", 1)
    clock.now = 129.9
    assert table.expired() == ()
    clock.now = 130.0
    assert [key for key, _ in table.expired()] == [KEY]


def test_renewal_counts_from_now(table: LeaseTable, clock: Clock) -> None:
    table.grant(KEY, "w", 1)
    clock.now = 120.0
    table.renew(KEY, "w", 1)
    clock.now = 149.0
    assert table.expired() == ()


@pytest.mark.parametrize(("worker", "epoch"), [("other", 2), ("w", 1), ("w", 3)])
def test_only_the_holder_of_the_present_epoch_is_accepted(
    table: LeaseTable, worker: str, epoch: int
) -> None:
    table.grant(KEY, "w", 2)
    table.require(KEY, "w", 2)
    with pytest.raises(StaleLeaseError, match="its epoch is 2"):
        table.require(KEY, worker, epoch)


def test_lease_that_has_ended_is_refused(table: LeaseTable) -> None:
    table.grant(KEY, "w", 1)
    table.end(KEY)
    with pytest.raises(StaleLeaseError, match="nobody holds it now"):
        table.renew(KEY, "w", 1)


def test_run_s_leases_end_together(table: LeaseTable) -> None:
    for key in (KEY, AssignmentKey("r", 1), AssignmentKey("s", 0)):
        table.grant(key, f"w-{key.run_id}-{key.learner}", 1)
    table.end_run("r")
    assert table.holders() == {"w-s-0"}
    assert table.held_by("w-s-0") == ("s", 0)
    assert table.held_by("w-r-0") is None


async def test_waiting_ends_when_a_lease_begins(table: LeaseTable) -> None:
    waiting = asyncio.create_task(table.wait_until_due())
    await asyncio.sleep(0)
    assert not waiting.done()
    table.grant(KEY, "w", 1)
    await waiting


async def test_while_nobody_could_be_heard_no_lease_ends(table: LeaseTable, clock: Clock) -> None:
    table.grant(AssignmentKey("r", 0), "w-0", 1)
    clock.now = 129.99
    table.grant(AssignmentKey("r", 1), "w-1", 1)
    waiting = asyncio.create_task(table.wait_until_due())
    await asyncio.sleep(0)
    clock.now = 200.0  # it was due at 130
    assert await waiting == pytest.approx(70.0)
    assert table.expired() == ()
    clock.now = 230.0
    assert len(table.expired()) == 2


async def test_lease_that_is_looked_at_a_little_late_has_ended(
    table: LeaseTable, clock: Clock
) -> None:
    table.grant(KEY, "w", 1)
    clock.now = 129.99
    waiting = asyncio.create_task(table.wait_until_due())
    await asyncio.sleep(0)
    clock.now = 131.0
    assert await waiting == 0.0
    assert [key for key, _ in table.expired()] == [KEY]


async def test_time_that_went_into_other_work_is_no_stop(table: LeaseTable, clock: Clock) -> None:
    table.grant(KEY, "w", 1)
    clock.now = 140.0  # writing took so long
    assert await table.wait_until_due() == 0.0
    assert [key for key, _ in table.expired()] == [KEY]


async def test_a_silent_worker_is_spared_once(table: LeaseTable, clock: Clock) -> None:
    table.grant(AssignmentKey("r", 0), "silent", 1)
    table.grant(AssignmentKey("r", 1), "heard", 1)

    async def stop() -> float:
        clock.now += 29.99
        waiting = asyncio.create_task(table.wait_until_due())
        await asyncio.sleep(0)
        clock.now += 60.0
        return await waiting

    assert await stop() > 0.0
    assert table.expired() == ()
    table.renew(AssignmentKey("r", 1), "heard", 1)
    assert await stop() > 0.0
    assert [key for key, _ in table.expired()] == [("r", 0)]


def test_setting_the_machine_s_clock_does_not_move_it() -> None:
    wall, monotonic = [1000.0], [5.0]
    now = steady_clock(lambda: wall[0], lambda: monotonic[0])
    assert now() == 1000.0
    wall[0] += 86_400
    monotonic[0] += 2
    assert now() == 1002.0
    wall[0] -= 10 * 86_400
    assert now() == 1002.0
