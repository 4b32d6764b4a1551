from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import StaleLeaseError, StateError
from lipt.common.observability.logs import EventKind
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.dispatch import dispatcher as module
from lipt.coordinator.dispatch import policy
from lipt.coordinator.dispatch.leases import LearnerLease, RangeAssignment, RangeLease, RunLearner
from lipt.coordinator.dispatch.policy import choose_learner
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.runs.store import LearnerProgress
from lipt.coordinator.state.records import LearnerFailure, LearnerResult
from lipt.core.pretraining.results import CommittedLearner
from tests.coordinator.dispatch.conftest import Bench
from tests.coordinator.made_up_runs import error, made_up_run
from tests.coordinator.state.conftest import stored_runs

RESULT = LearnerResult(blob=BlobName.of(b"learner"), loss=1.0, train_seconds=2.0, bytes_received=3)


async def test_the_longest_waiting_worker_is_first_and_polls_once(bench: Bench) -> None:
    polls = []
    for worker in map(bench.join, ("first", "second", "first")):
        polls.append(asyncio.create_task(bench.acquire(worker, wait_seconds=5.0)))
        await asyncio.sleep(0)
    assert await polls[0] is None
    assert bench.dispatcher.num_waiting() == 2
    await bench.store.add(made_up_run(num_learners=2))
    granted = await asyncio.gather(*polls[1:])
    name = bench.dispatcher.workers.name
    assert [(name(it.lease.worker_id), it.learner.index) for it in granted if it] == [
        ("second", 0),
        ("first", 1),
    ]


async def test_considered_workers_are_limited_by_queued_learners(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    considered: list[str] = []

    def watched(worker: WorkerRecord, *arguments: Any, **keywords: Any) -> RunLearner | None:
        considered.append(worker.name)
        return choose_learner(worker, *arguments, **keywords)

    monkeypatch.setattr(policy, "choose_learner", watched)
    polls = [
        asyncio.create_task(bench.acquire(bench.join(f"{number}"), wait_seconds=5.0))
        for number in range(100)
    ]
    await asyncio.sleep(0)
    await bench.store.add(made_up_run(num_learners=3))
    granted = await asyncio.gather(*polls[:3])
    assert [grant[1].index for grant in granted if grant] == [0, 1, 2]
    # Neither now, nor after each grant.
    assert considered == ["0", "1", "2"]
    for poll in polls[3:]:
        poll.cancel()


async def test_a_committed_learner_is_done_and_a_repeated_commit_changes_nothing(
    bench: Bench,
) -> None:
    lease = await bench.leased(made_up_run())
    await bench.dispatcher.commit(lease, RESULT)
    before = bench.store.find("r")
    await bench.dispatcher.commit(lease, RESULT)
    assert bench.store.find("r") == before
    assert before.outcome.learners == (CommittedLearner(0, (), RESULT.blob),)
    assert bench.dispatcher.check_commit(lease, RESULT.blob) == (before, True)


async def test_heartbeats_renew_the_lease_and_silence_ends_it(bench: Bench) -> None:
    lease = await bench.leased(made_up_run())
    bench.clock.now = 29.0
    assert bench.dispatcher.heartbeat(lease, LearnerProgress(step=4)) is False
    assert bench.store.progress("r", 0).step == 4
    bench.clock.now = 58.5
    assert bench.dispatcher.leases.expired() == ()
    bench.clock.now = 59.5
    await bench.expire()
    assert bench.state() is LearnerState.QUEUED
    with pytest.raises(StaleLeaseError, match="is not used"):
        bench.dispatcher.heartbeat(lease, LearnerProgress())


async def test_a_worker_cannot_commit_after_its_lease_went_to_another(bench: Bench) -> None:
    await bench.store.add(made_up_run(num_learners=1))
    zombie, heir = bench.join("zombie"), bench.join("heir")
    old = await bench.take(zombie)
    bench.clock.now = 31.0
    await bench.expire()
    new = await bench.take(heir)
    assert new == LearnerLease(old.key, old.epoch + 1, heir)
    with pytest.raises(StaleLeaseError):
        await bench.dispatcher.commit(old, RESULT)
    with pytest.raises(StaleLeaseError):  # before its files are read
        bench.dispatcher.check_commit(old, RESULT.blob)
    await bench.dispatcher.commit(new, RESULT)
    assert bench.state() is LearnerState.DONE


async def test_a_released_learner_is_available_at_once(bench: Bench) -> None:
    await bench.store.add(made_up_run(num_learners=1))
    leaving, waiting = bench.join("leaving"), bench.join("waiting")
    lease = await bench.take(leaving)
    poll = asyncio.create_task(bench.acquire(waiting, wait_seconds=5.0))
    await asyncio.sleep(0)
    await bench.dispatcher.give_back(lease)
    granted = await poll
    assert granted is not None
    assert granted[1].failures == 0
    await bench.dispatcher.give_back(lease)  # again: harmless
    assert bench.state() is LearnerState.LEASED


async def test_worker_of_an_ended_run_is_told_to_stop(bench: Bench) -> None:
    lease = await bench.leased(made_up_run())
    await bench.store.update("r", lambda run: run.changed(state=RunState.CANCELLED))
    assert bench.dispatcher.heartbeat(lease, LearnerProgress()) is True
    with pytest.raises(StaleLeaseError):
        await bench.dispatcher.commit(lease, RESULT)


async def test_restart_renews_leases_and_ends_those_of_silent_workers(bench: Bench) -> None:
    lease = await bench.leased(made_up_run())
    await bench.restart()
    assert bench.dispatcher.heartbeat(lease, LearnerProgress()) is False
    await bench.restart()
    bench.clock.now = 31.0
    await bench.expire()
    assert bench.state() is LearnerState.QUEUED


async def refuse(*_: object) -> None:
    raise StateError("the disk is full.")


async def test_a_lease_end_that_cannot_be_written_is_retried_a_second_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.leased(made_up_run())
    bench.clock.now = 31.0

    with monkeypatch.context() as patched:
        patched.setattr(bench.database, "save_run", refuse)
        await bench.dispatcher._expire(*bench.dispatcher.leases.expired())
    assert bench.dispatcher.leases.expired() == ()
    bench.clock.now = 32.0
    await bench.expire()
    assert bench.state() is LearnerState.QUEUED


@pytest.mark.parametrize("held", [False, True])
async def test_learner_of_a_run_that_ends_or_is_held_is_not_leased(
    bench: Bench, held: bool
) -> None:
    await bench.store.add(made_up_run(num_learners=1))
    worker = bench.join("a")
    asking = asyncio.create_task(bench.acquire(worker, wait_seconds=60.0))
    while not bench.dispatcher._reserved:  # noqa: ASYNC110
        await asyncio.sleep(0)
    if held:
        bench.store.hold("r", "other data.")
    else:
        await bench.store.update("r", lambda run: run.changed(state=RunState.CANCELLED))
    assert await asking is None
    assert bench.state() is LearnerState.QUEUED


async def test_a_learner_of_a_cancelled_call_stays_queued(bench: Bench) -> None:
    await bench.store.add(made_up_run(num_learners=1))
    gone, here = bench.join("gone"), bench.join("here")
    cut = asyncio.create_task(bench.acquire(gone, wait_seconds=60.0))
    while not bench.dispatcher._reserved:  # noqa: ASYNC110
        await asyncio.sleep(0)
    cut.cancel()
    await asyncio.gather(cut, return_exceptions=True)
    assert (await bench.take(here)).key == ("r", 0)


async def test_a_held_run_leases_no_learner_but_accepts_results(bench: Bench) -> None:
    lease = await bench.leased(made_up_run(num_learners=2))
    bench.store.hold("r", "other data.")
    other = bench.join("b")
    assert await bench.acquire(other, wait_seconds=0.0) is None
    assert not bench.dispatcher.heartbeat(lease, LearnerProgress())
    await bench.dispatcher.commit(lease, RESULT)
    assert bench.state(0) is LearnerState.DONE
    # The next run's learners do not wait for this one.
    await bench.store.add(made_up_run("s", num_learners=1))
    assert (await bench.take(other)).key == ("s", 0)
    # They go out as soon as it is released.
    asking = asyncio.create_task(bench.acquire(lease.worker_id, wait_seconds=60.0))
    await asyncio.sleep(0)
    assert bench.dispatcher.num_waiting() == 1
    bench.store.release("r")
    assert await asking is not None
    assert bench.state(1) is LearnerState.LEASED


async def test_only_a_worker_without_a_learner_is_idle_and_hears_of_it_soon(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_IDLE_POLL_SECONDS", 0.01)
    vm = bench.join("vm")
    mine = made_up_run(model="mine:build")
    await bench.store.add(mine)
    dispatcher = bench.dispatcher
    assert await bench.acquire(vm, wait_seconds=3600.0) is None
    assert "does not allow `mine`" in dispatcher.idle_reason(dispatcher.workers.note_call(vm))
    assert dispatcher.waiting_reason(mine).startswith("worker vm does not allow")
    await bench.store.add(made_up_run("builtin", num_learners=1))
    await bench.take(vm)
    assert dispatcher.idle_reason(dispatcher.workers.note_call(vm)) == ""


async def lose(bench: Bench, name: str) -> str:
    """The run of the learner that a new worker takes and loses."""
    lease = await bench.take(bench.join(name))
    bench.clock.now += 31.0
    await bench.expire()
    return lease.key.run_id


async def test_a_learner_that_kills_workers_goes_last_and_is_reported(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.store.add(made_up_run(num_learners=1))
    await bench.store.add(made_up_run("later", num_learners=1))
    assert [await lose(bench, name) for name in ("a", "b")] == ["r", "r"]
    assert bench.events.count(EventKind.LEARNER_QUARANTINED) == 0
    assert await lose(bench, "c") == "r"
    assert bench.events.count(EventKind.LEARNER_QUARANTINED) == 1
    run = bench.store.find("r")
    assert run.learners[0].failures == 0
    assert "learner 0 is in quarantine: 3 workers" in bench.dispatcher.waiting_reason(run)
    assert "learner 0 is in quarantine: 3 workers in a row (last a, b, c)" in caplog.text

    healthy = bench.join("healthy")
    lease = await bench.take(healthy)
    assert lease.key == ("later", 0)
    await bench.dispatcher.commit(lease, RESULT)
    # There is nothing else to do, but its turn has not come.
    assert await bench.acquire(healthy) is None
    bench.clock.now += 60.0
    assert (await bench.take(healthy)).key == ("r", 0)


async def test_learners_that_kill_three_workers_are_quarantined_together(bench: Bench) -> None:
    await bench.store.add(made_up_run(num_learners=4))
    for name in ("a", "b", "c"):
        await bench.take(bench.join(name))
    bench.clock.now += 31.0
    await bench.expire()
    assert bench.events.count(EventKind.LEARNER_QUARANTINED) == 1
    assert "4 learners are in quarantine" in bench.dispatcher.waiting_reason(bench.store.find("r"))
    assert await bench.acquire(bench.join("d")) is None


async def test_quarantine_outlives_a_restart_and_ends_if_a_worker_returns(bench: Bench) -> None:
    await bench.store.add(made_up_run(num_learners=1))
    for name in ("a", "b", "c"):
        await lose(bench, name)
    await bench.restart()
    assert await bench.acquire(bench.join("d")) is None
    # One of them was not ended, but cut off.
    assert (await bench.take(bench.join("b"))).key == ("r", 0)


async def test_a_lost_worker_s_step_is_not_shown_for_the_next_worker(bench: Bench) -> None:
    lease = await bench.leased(made_up_run(num_learners=1))
    bench.dispatcher.heartbeat(lease, LearnerProgress(step=7))
    bench.clock.now += 31.0
    await bench.expire()
    assert bench.store.progress("r", 0).step == 0
    await lose(bench, "b")
    assert [end.step for end in bench.store.find("r").learners[0].silent_ends] == [7, 0]


async def test_a_learner_above_a_worker_s_limits_goes_to_another(bench: Bench) -> None:
    await bench.store.add(made_up_run(num_learners=2, max_attempts=1))
    small, large = bench.join("small"), bench.join("large")
    lease = await bench.take(small)
    await bench.dispatcher.give_back(lease, too_large="over --max-threads.")
    assert await bench.acquire(small, wait_seconds=0.0) is None
    assert (await bench.take(large)).key == lease.key
    learner = bench.store.find("r").learners[0]
    assert learner.failures == 0
    assert learner.message == "worker small gave it back: over --max-threads."
    assert bench.events.count(EventKind.LEARNER_DECLINED) == 1
    await bench.dispatcher.give_back(lease, too_large="again")  # harmless
    assert bench.state() is LearnerState.LEASED
    # A lease that is not its own, of a run or a scan, adds nothing to what it has declined.
    other = RangeLease(RangeAssignment("scan-1", 0), 1, large)
    for foreign in (lease._replace(worker_id=large), other):
        await bench.dispatcher.give_back(foreign, too_large="no lease of this worker")
    assert bench.dispatcher.workers.note_call(large).declined == frozenset()


OTHER_RESULT = RESULT.changed(blob=BlobName.of(b"other"))


FAILURE = error("NaN")


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        (RESULT, RESULT, type(None)),
        (RESULT, OTHER_RESULT, StaleLeaseError),
        (RESULT, FAILURE, StaleLeaseError),
        (FAILURE, RESULT, StaleLeaseError),
    ],
)
async def test_the_first_of_two_concurrent_results_counts(
    bench: Bench, first: Any, second: Any, refused: type
) -> None:
    lease = await bench.leased(made_up_run())
    ways: dict[type, Any] = {
        LearnerFailure: bench.dispatcher.fail,
        LearnerResult: bench.dispatcher.commit,
    }
    calls = (ways[type(it)](lease, it) for it in (first, second))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), refused]
    assert bench.state() is (LearnerState.DONE if first == RESULT else LearnerState.QUEUED)
    learner = bench.store.find("r").learners[0]
    taken = learner.result and learner.result.blob
    assert (taken, learner.failures) == ((RESULT.blob, 0) if first == RESULT else (None, 1))
    assert bench.dispatcher.leases.num_learners() == 0


async def test_a_lease_does_not_expire_while_its_result_is_written(bench: Bench) -> None:
    lease = await bench.leased(made_up_run())
    bench.clock.now = 31.0
    commit = asyncio.create_task(bench.dispatcher.commit(lease, RESULT))
    await asyncio.sleep(0)
    expiry = asyncio.create_task(bench.dispatcher.expire_leases())
    await commit
    # From now on for longer than the round that was under way.
    bench.clock.now = 100.0
    other = bench.join("b")
    await bench.take(other)
    expiry.cancel()
    learner = bench.store.find("r").learners[0]
    assert (learner.state, learner.silent_ends) == (LearnerState.DONE, ())
    assert bench.events.count(EventKind.LEASE_EXPIRED) == 0


async def test_a_failed_write_of_a_result_keeps_the_lease(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await bench.leased(made_up_run())

    with monkeypatch.context() as patched:
        patched.setattr(bench.database, "save_run", refuse)
        calls = [
            bench.dispatcher.commit(lease, RESULT),
            # Built upon a write that fails: no worker learns that the lease is over.
            bench.dispatcher.commit(lease, OTHER_RESULT),
        ]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StateError, StateError]
    assert bench.state() is LearnerState.LEASED
    assert bench.dispatcher.heartbeat(lease, LearnerProgress()) is False
    await bench.dispatcher.commit(lease, RESULT)
    assert bench.state() is LearnerState.DONE


async def test_a_worker_gets_the_learner_of_its_cancelled_call_again(bench: Bench) -> None:
    await bench.store.add(made_up_run(num_learners=1))
    worker, other = bench.join("a"), bench.join("b")
    cut = asyncio.create_task(bench.acquire(worker, wait_seconds=60.0))
    while not bench.dispatcher._granting:  # noqa: ASYNC110
        await asyncio.sleep(0)
    cut.cancel()
    # While it is being written, and afterwards.
    both = await asyncio.gather(bench.take(worker), bench.take(worker))
    assert both == [await bench.take(worker)] * 2
    assert await bench.acquire(other, wait_seconds=0.0) is None
    assert bench.store.find("r").learners[0].epoch == 1


async def test_a_hundred_workers_need_few_transactions(bench: Bench) -> None:
    statements: list[str] = []
    await bench.store.add(made_up_run(num_learners=100))
    await bench.database._do(
        lambda: bench.database._connection.set_trace_callback(statements.append)
    )
    workers = [bench.join(f"{number}") for number in range(100)]
    taken = await asyncio.gather(*map(bench.take, workers))
    await asyncio.gather(*(bench.dispatcher.commit(lease, RESULT) for lease in taken))
    assert {learner.state for learner in bench.store.find("r").learners} == {LearnerState.DONE}
    assert await stored_runs(bench.database) == bench.store.live()
    # 200 changes, each of which was durable before it was answered.
    assert statements.count("COMMIT") <= 4
