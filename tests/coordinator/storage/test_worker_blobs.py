from __future__ import annotations

import pytest

from lipt.common.access.roles import Role
from lipt.common.blobs.blob import BlobName
from lipt.common.errors import ForeignBlobError
from lipt.coordinator.access.caller import ANYBODY, Caller, Evidence
from lipt.coordinator.dispatch.leases import AssignmentKey, RangeGrant
from lipt.coordinator.state.records import RunRecord
from lipt.coordinator.storage.accounts import Allowance, WorkerBlobs
from tests.coordinator.dispatch.conftest import Bench
from tests.coordinator.dispatch.test_scans import OPENED, THETA_P, VERSIONS
from tests.coordinator.made_up_runs import made_up_run

THETA, OTHER = BlobName.of(b"theta*"), BlobName.of(b"other")
SECRET = "5" * 32


def test_every_file_may_be_sent_twice_at_twice_the_size_and_a_header() -> None:
    lease = (AssignmentKey("r", 0), 1)
    run = made_up_run().changed(initial_weights=BlobName("0" * 64, 1000))
    learners = run.config.learners.model_copy(update={"num_snapshots": 3})
    run = run.changed(config=run.config.model_copy(update={"learners": learners}))
    assert Allowance.of_learner(lease, run) == Allowance(lease, 8, max_file_bytes=2000 + 2**20)
    run = made_up_run().changed(initial_weights=None)
    assert Allowance.of_learner(lease, run) == Allowance(lease, 2, max_file_bytes=2**20)


class Blobs(WorkerBlobs):
    """What decides on the blobs of workers that have learners of one run."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.dispatcher)
        self.bench = bench

    async def leased(self, instance_id: str, shown: Evidence) -> tuple[str, RunRecord, BlobName]:
        """A worker that registers so: its id, the run, and the shard of the learner it has."""
        worker_id = self.bench.join(instance_id, shown=shown)
        key, _ = await self.bench.take(worker_id)
        run = self.bench.store.find(key.run_id)
        return worker_id, run, run.learners[key.learner].shard


@pytest.fixture
async def blobs(bench: Bench) -> Blobs:
    await bench.store.add(made_up_run())
    return Blobs(bench)


async def test_whoever_shows_no_worker_reads_and_sends_as_a_trainer(blobs: Blobs) -> None:
    await blobs.leased(SECRET, Evidence(ANYBODY, SECRET))
    trainer = Evidence(Caller("t", "t", frozenset({Role.TRAINER})))
    for shown in (Evidence(ANYBODY), trainer):
        blobs.require_readable(OTHER, shown)
        assert blobs.allowance(OTHER, shown) is None


async def test_a_worker_s_blobs_follow_its_lease(blobs: Blobs) -> None:
    shown = Evidence(ANYBODY, SECRET)
    with pytest.raises(ForeignBlobError):
        blobs.require_readable(THETA, shown)
    worker_id, run, shard = await blobs.leased(SECRET, shown)
    for name in (THETA, shard):
        blobs.require_readable(name, shown)
    for other in (OTHER, run.learners[1].shard):
        with pytest.raises(ForeignBlobError, match="not of this worker's assignment"):
            blobs.require_readable(other, shown)
    allowed = blobs.allowance(OTHER, shown)
    assert allowed is not None
    key, epoch = allowed.lease
    assert (key, epoch) == (("r", 0), 1)
    await blobs.bench.dispatcher.give_back(worker_id, key, epoch)
    for refused in (blobs.require_readable, blobs.allowance):
        with pytest.raises(ForeignBlobError, match="this one has none"):
            refused(THETA, shown)
    # Another lease of the same learner begins anew.
    await blobs.leased(SECRET, shown)
    allowed = blobs.allowance(OTHER, shown)
    assert allowed is not None
    assert allowed.lease == (key, 2)


async def test_a_worker_with_a_range_reads_its_weights_and_sends_two_files(bench: Bench) -> None:
    shown = Evidence(ANYBODY, SECRET)
    worker = bench.join(SECRET, versions=VERSIONS, has_data=True, shown=shown)
    bench.dispatcher.scans.note(OPENED)
    grant = await bench.dispatcher.next_work(worker, wait_seconds=0.0)
    assert isinstance(grant, RangeGrant)
    blobs = WorkerBlobs(bench.dispatcher)
    blobs.require_readable(THETA_P, shown)
    with pytest.raises(ForeignBlobError):
        blobs.require_readable(OTHER, shown)
    lease = (grant.key, grant.epoch)
    assert blobs.allowance(OTHER, shown) == Allowance(lease, 2, grant.scan.max_file_bytes)


async def test_a_lease_that_outlived_the_coordinator_goes_on_before_anybody_registers(
    blobs: Blobs,
) -> None:
    shown = Evidence(ANYBODY, SECRET)
    _, _, shard = await blobs.leased(SECRET, shown)
    await blobs.bench.restart()
    blobs = Blobs(blobs.bench)
    blobs.require_readable(shard, shown)
    assert blobs.allowance(OTHER, shown) is not None
    with pytest.raises(ForeignBlobError):
        blobs.require_readable(shard, Evidence(ANYBODY, "6" * 32))
