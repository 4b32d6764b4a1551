from __future__ import annotations

from collections.abc import Callable

import pytest

from lipt.common.access.roles import Role
from lipt.common.blobs.blob import BlobName
from lipt.common.errors import ForeignBlobError
from lipt.coordinator.access.caller import ANYBODY, Caller
from lipt.coordinator.access.worker_identity import Evidence
from lipt.coordinator.dispatch.dispatcher import Dispatcher
from lipt.coordinator.dispatch.worker_blobs import WorkerBlobs, why_not_read, why_not_send
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord
from tests.clock import Clock

MakeRun = Callable[..., RunRecord]
THETA, OTHER = BlobName.of(b"theta*"), BlobName.of(b"other")
SECRET = "5" * 32


def named(number: int) -> BlobName:
    return BlobName.of(b"result %d" % number)


def test_a_worker_reads_theta_star_and_the_shard_of_its_own_learner(make_run: MakeRun) -> None:
    run = make_run()
    held = [(run, run.learners[1])]
    assert why_not_read(THETA, held) == why_not_read(run.learners[1].shard, held) == ""
    assert "is not of this worker's assignment name-r/1" in why_not_read(OTHER, held)
    assert why_not_read(run.learners[0].shard, held) != ""
    assert "and this one has none" in why_not_read(THETA, [])


def test_a_worker_sends_as_many_files_as_its_learner_may_have_twice(make_run: MakeRun) -> None:
    run = make_run()
    learners = run.config.learners.model_copy(update={"num_snapshots": 2})
    held = [
        (run.changed(config=run.config.model_copy(update={"learners": learners})), run.learners[0])
    ]
    sent = {named(number) for number in range(6)}
    assert why_not_send(named(0), held, [sent]) == ""
    assert why_not_send(OTHER, held, [sent - {named(0)}]) == ""
    words = f"blob {OTHER} is one more than the 6 that may be sent for learner name-r/0"
    assert words in why_not_send(OTHER, held, [sent])
    assert "and this one has none" in why_not_send(OTHER, [], [])


def test_a_file_is_not_much_larger_than_the_weights_that_training_began_with(
    make_run: MakeRun,
) -> None:
    run = make_run().changed(initial_weights=BlobName("0" * 64, 1000))
    held = [(run, run.learners[0])]
    most = 2 * 1000 + 2**20
    assert why_not_send(BlobName("1" * 64, most), held, [set()]) == ""
    words = f"is larger than the {most} bytes that a file of learner name-r/0 may have"
    assert words in why_not_send(BlobName("1" * 64, most + 1), held, [set()])


class Bench:
    """Workers with learners, and what decides on their blobs."""

    def __init__(self, database: Database) -> None:
        self.clock = Clock()
        self.store = RunStore(database)
        self.dispatcher = Dispatcher(
            self.store, lease_seconds=30.0, clock=self.clock, wall_clock=self.clock
        )
        self.blobs = WorkerBlobs(self.dispatcher)

    async def leased(self, instance_id: str, shown: Evidence) -> tuple[str, RunRecord, BlobName]:
        """A worker that registers so: its id, the run, and the shard of the learner it has."""
        worker = self.dispatcher.workers.register(
            instance_id, name="w", device="cpu", versions={}, allowed_modules=(), shown=shown
        )
        granted = await self.dispatcher.acquire(worker.worker_id, wait_seconds=0.0)
        assert granted is not None
        run, learner = granted
        return worker.worker_id, run, learner.shard


@pytest.fixture
async def bench(database: Database, make_run: MakeRun) -> Bench:
    bench = Bench(database)
    await bench.store.add(make_run())
    return bench


async def test_whoever_shows_no_worker_reads_and_sends_as_a_trainer(bench: Bench) -> None:
    await bench.leased(SECRET, Evidence(ANYBODY, SECRET))
    trainer = Evidence(Caller("t", "t", frozenset({Role.TRAINER})))
    for shown in (Evidence(ANYBODY), trainer):
        bench.blobs.require_readable(OTHER, shown)
        bench.blobs.require_sendable(OTHER, shown)


async def test_a_worker_s_blobs_follow_its_lease(bench: Bench) -> None:
    shown = Evidence(ANYBODY, SECRET)
    with pytest.raises(ForeignBlobError):
        bench.blobs.require_readable(THETA, shown)
    worker_id, _, shard = await bench.leased(SECRET, shown)
    for name in (THETA, shard):
        bench.blobs.require_readable(name, shown)
    for number in (0, 1, 0, 1):
        bench.blobs.require_sendable(named(number), shown)
    with pytest.raises(ForeignBlobError, match="one more than the 2"):
        bench.blobs.require_sendable(named(2), shown)
    held = bench.dispatcher.leases.held_by(worker_id)
    assert held is not None
    await bench.dispatcher.release(worker_id, held, 1)
    for refused in (bench.blobs.require_readable, bench.blobs.require_sendable):
        with pytest.raises(ForeignBlobError, match="this one has none"):
            refused(THETA, shown)
    # Another lease of the same learner begins anew.
    _, again, _ = await bench.leased(SECRET, shown)
    assert again.learners[held.learner].epoch == 2
    bench.blobs.require_sendable(named(2), shown)
    assert len(bench.blobs._named) == 1


async def test_an_older_worker_that_may_only_work_reads_for_the_learners_of_its_key(
    bench: Bench,
) -> None:
    box, other = (Evidence(Caller(key, key, frozenset({Role.WORKER}))) for key in ("box", "other"))
    _, _, shard = await bench.leased("old", box)
    bench.blobs.require_readable(shard, box)
    bench.blobs.require_sendable(named(0), box)
    _, _, theirs = await bench.leased("older", other)
    with pytest.raises(ForeignBlobError):
        bench.blobs.require_readable(theirs, box)


async def test_a_lease_that_outlived_the_coordinator_goes_on_before_anybody_registers(
    bench: Bench,
) -> None:
    shown = Evidence(ANYBODY, SECRET)
    _, _, shard = await bench.leased(SECRET, shown)
    restarted = Dispatcher(
        bench.store, lease_seconds=30.0, clock=bench.clock, wall_clock=bench.clock
    )
    restarted.restore()
    blobs = WorkerBlobs(restarted)
    blobs.require_readable(shard, shown)
    blobs.require_sendable(named(0), shown)
    with pytest.raises(ForeignBlobError):
        blobs.require_readable(shard, Evidence(ANYBODY, "6" * 32))
