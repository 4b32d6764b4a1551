from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipt.common.access import EVERY_ROLE, Role
from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import LearnerRejectedError, StaleLeaseError, UnknownBlobError
from lipt.common.observability.metrics import Meters
from lipt.common.states import RunState
from lipt.common.tensor_files import Weights
from lipt.coordinator.access.caller import ANYBODY, CallCredentials, Caller
from lipt.coordinator.compute.messages import ScanClosed, ScanNews
from lipt.coordinator.compute.scan import (
    Challenge,
    CredentialDistrusted,
    RangeDone,
    RangeFolder,
    Scan,
    ScanOpened,
)
from lipt.coordinator.dispatch.dispatcher import Demand, Dispatcher
from lipt.coordinator.dispatch.intake import Intake
from lipt.coordinator.dispatch.leases import (
    LeaseTable,
    RangeAssignment,
    RangeGrant,
    RangeLease,
    Scans,
)
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.instruments import SCORED_EXAMPLES
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.core.passes import encode_range, range_specs
from lipt.core.tasks import ScoredValues, ScoringTask
from tests.clock import Clock
from tests.coordinator.dispatch.conftest import Bench
from tests.coordinator.fakes import joined
from tests.coordinator.made_up_runs import IMAGE, error, leased, made_up_run
from tests.meters import sums

VERSIONS = {"lipt": "0.1.0", "torch": "2", "cpu": "x"}
THETA_P = BlobName.of(b"theta_p")
# Ten examples in three ranges.
SCAN = Scan(
    ScoringTask(
        model="resnet8",
        num_classes=3,
        image=IMAGE,
        fingerprint="f" * 64,
        start=0,
        stop=10,
        batch_size=4,
        threads=1,
        values=ScoredValues.SIGNALS,
    ),
    THETA_P,
    num_features=2,
    range_examples=4,
    kind="cpu (x), torch 2",
    lipt="0.1.0",
)
PROOF = "p" * 64
OPENED = ScanOpened(SCAN.scan_id, SCAN, frozenset(), Challenge("nonce", (1, 2), PROOF))
CLOSED = ScanClosed(scan_id=SCAN.scan_id)


def worker(key: str, *, scores: bool = True) -> Caller:
    return Caller(key, f"the token {key}", frozenset({Role.WORKER}), scores=scores)


def seeing_worker(name: str, *, has_data: bool = True, **facts: Any) -> WorkerRecord:
    """A worker of the scan's kind, with the data before it; `facts` are what differs."""
    caller = worker(f"token:{name}")
    record = WorkerRecord(name, name, "cpu", VERSIONS, (), 0.0, has_data=has_data, caller=caller)
    return replace(record, **facts)


def opened(scan: Scan = SCAN, present: frozenset[int] = frozenset()) -> Scans:
    scans = Scans(LeaseTable(30.0, Clock()))
    scans.note(replace(OPENED, scan_id=scan.scan_id, scan=scan, present=present))
    return scans


# The same ranges with a loss for each example.
OF_LOSSES = replace(SCAN, whole=replace(SCAN.whole, values=ScoredValues.LOSSES))


def scored(grant: RangeGrant, value: float = 0.5) -> Weights:
    specs = range_specs(grant.task, SCAN.num_features)
    return {name: torch.full(spec.shape, value, dtype=spec.dtype) for name, spec in specs.items()}


@pytest.fixture
def meters() -> Meters:
    return Meters()


@pytest.fixture
def scans(meters: Meters) -> Scans:
    scans = Scans(LeaseTable(30.0, Clock()), meters)
    scans.note(OPENED)
    return scans


def grant(scans: Scans, name: str) -> RangeGrant:
    found = scans.take(seeing_worker(name))
    assert found is not None
    return found


def index(scans: Scans, name: str) -> int:
    return grant(scans, name).lease.key.number


def test_a_repeated_request_gets_the_same_range(scans: Scans) -> None:
    first = grant(scans, "a")
    assert str(first) == "examples 0 to 3"
    assert grant(scans, "a") == first
    assert grant(scans, "b").task.start == 4


def test_the_first_missing_range_goes_first() -> None:
    scans = opened(present=frozenset({0}))
    scans.note(RangeDone(scan_id=SCAN.scan_id, index=1))
    assert index(scans, "a") == 2
    assert scans.take(seeing_worker("b")) is None


@pytest.mark.parametrize(
    "other",
    [
        seeing_worker("a", has_data=False),
        seeing_worker("a", caller=worker("token:a", scores=False)),
        seeing_worker("a", device="NVIDIA"),
        seeing_worker("a", versions=VERSIONS | {"torch": "3"}),
        seeing_worker("a", versions=VERSIONS | {"lipt": "0.2.0"}),
    ],
    ids=["no data", "no permission", "another device", "another torch", "another lipt"],
)
def test_only_equal_workers_with_the_data_get_ranges(scans: Scans, other: WorkerRecord) -> None:
    assert scans.take(other) is None


def test_a_user_s_model_goes_to_workers_that_allow_its_module() -> None:
    scans = opened(replace(SCAN, whole=replace(SCAN.whole, model="mine:net")))
    assert scans.take(seeing_worker("a")) is None
    assert scans.take(seeing_worker("a", allowed_modules=("mine",))) is not None
    # Any kind of device will do where the scan says so.
    scans = opened(replace(SCAN, kind=""))
    assert scans.take(seeing_worker("a", device="NVIDIA")) is not None


@pytest.mark.parametrize("news", [CLOSED, RangeDone(scan_id=SCAN.scan_id, index=0)])
def test_a_finished_or_cancelled_range_stops_its_worker(
    scans: Scans, meters: Meters, news: ScanNews
) -> None:
    held = grant(scans, "a")
    assert not scans.heartbeat(held.lease)
    scans.note(news)
    assert scans.heartbeat(held.lease)
    if news is not CLOSED:
        assert sums(meters, SCORED_EXAMPLES) == {("coordinator",): 4, ("workers",): 0}
        return
    assert scans.take(seeing_worker("a")) is None
    with pytest.raises(StaleLeaseError, match="it is not needed any more"):
        scans.require(held.lease)


def test_a_worker_cannot_use_another_worker_s_range(scans: Scans) -> None:
    key, epoch, _ = grant(scans, "a").lease
    for other in (RangeLease(key, epoch, "b"), RangeLease(key, 77, "a")):
        with pytest.raises(StaleLeaseError, match=f"with epoch {other.epoch} is over"):
            scans.heartbeat(other)


def test_ranges_of_a_faulty_worker_go_to_other_credentials(scans: Scans) -> None:
    scans.finish(grant(scans, "liar"))
    liar = seeing_worker("liar")
    lie = CredentialDistrusted(SCAN.scan_id, liar.caller.label, frozenset({0}))
    scans.note(lie)
    # Another id of the same token is the same credential.
    assert scans.take(replace(liar, worker_id="w-of-the-liar")) is None
    assert [index(scans, name) for name in "abc"] == [0, 1, 2]
    scans.note(CLOSED)
    scans.note(OPENED)
    assert scans.take(seeing_worker("liar")) is None


def test_a_credential_is_a_certificate_a_token_or_a_host() -> None:
    certified = Caller("certificate:ab", "the certificate of gpu/1", EVERY_ROLE, certificate="ab")
    renewed = replace(certified, key="certificate:cd", certificate="cd")
    assert certified.label == renewed.label
    assert certified.label.startswith("the-certificate-of-gpu-1-")
    assert worker("token:1").label != worker("token:2").label
    hosts = [replace(ANYBODY, key=f"ipv4:10.0.0.{host}") for host in ("1:77", "1:78", "2:77")]
    first, again, other = (host.label for host in hosts)
    assert first == again != other
    # An IPv6 host has every address of its network.
    keys = [f"ipv6:%5B2001:db8::{address}%5D:1" for address in ("1", "2", "1:0:0:0:1")]
    first, again, other = (replace(ANYBODY, key=key).label for key in keys)
    assert first == again != other
    odd = replace(certified, name="../" * 99).label
    assert len(odd) < 60
    assert not {"/", "."} & set(odd)


def test_a_returned_range_is_free_and_a_failed_one_is_not(scans: Scans) -> None:
    scans.give_back(grant(scans, "a").lease, failed=True)
    held = grant(scans, "b")
    scans.give_back(held.lease)
    assert [index(scans, name) for name in "cd"] == [1, 2]
    scans.give_back(held.lease)  # late: it is another's by now
    assert index(scans, "c") == held.lease.key.number
    assert scans.take(seeing_worker("e")) is None


def test_a_reopened_scan_has_no_leases(scans: Scans) -> None:
    first = grant(scans, "a")
    scans.note(OPENED)
    assert scans.held_by("a") is None
    assert grant(scans, "b").lease.key == first.lease.key
    with pytest.raises(StaleLeaseError):
        scans.require(first.lease)


@pytest.mark.parametrize("scan", [SCAN, OF_LOSSES], ids=["signals", "losses"])
def test_every_range_file_fits_max_file_bytes(scan: Scan) -> None:
    held = grant(opened(scan), "a")
    noise = {
        name: torch.randn(value.shape, generator=torch.Generator().manual_seed(0))
        for name, value in scored(held).items()
    }
    assert len(encode_range(noise)) <= scan.max_file_bytes
    assert OF_LOSSES.max_file_bytes < SCAN.max_file_bytes


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "finish", "end"]))),
)
def test_every_range_is_finished(num_ranges: int, turns: list[tuple[str, str]]) -> None:
    scan = replace(SCAN, whole=replace(SCAN.whole, stop=4 * num_ranges))
    scans = opened(scan)
    for worker, turn in turns:
        held = scans.held_by(worker)
        if turn == "take":
            scans.take(seeing_worker(worker))
        elif held is not None and turn == "finish":
            scans.finish(held)
        elif held is not None:
            scans.give_back(held.lease)
    for worker in "abc":
        while (taken := scans.take(seeing_worker(worker))) is not None:
            scans.finish(taken)
    keys = [RangeAssignment(scan.scan_id, index) for index in range(num_ranges)]
    assert all(map(scans.is_done, keys))


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path, max_blob_bytes=2**20)


@pytest.fixture
def folder(tmp_path: Path) -> RangeFolder:
    folder = RangeFolder(tmp_path / "scans", SCAN.scan_id)
    folder.open()
    return folder


@pytest.fixture
def intake(
    database: Database, blobs: BlobStore, folder: RangeFolder, meters: Meters
) -> Iterator[Intake]:
    dispatcher = Dispatcher(
        RunStore(database), lease_seconds=30.0, clock=Clock(), wall_clock=Clock(), meters=meters
    )
    dispatcher.scans.note(OPENED)
    intake = Intake(dispatcher, blobs, folder.path.parent)
    yield intake
    intake.stop()


def registered(intake: Intake, name: str) -> WorkerRecord:
    return joined(intake.dispatcher.workers, name, versions=VERSIONS, has_data=True)


def granted_to(intake: Intake, name: str) -> RangeGrant:
    found = intake.dispatcher.scans.take(registered(intake, name))
    assert found is not None
    return found


async def take_range(intake: Intake, held: RangeGrant, name: BlobName, proof: str = PROOF) -> None:
    await intake.take_range(held.lease, name, proof)


async def test_a_range_result_moves_to_the_scan_s_folder(
    intake: Intake, blobs: BlobStore, folder: RangeFolder, meters: Meters
) -> None:
    held = granted_to(intake, "a")
    name = blobs.put_bytes(encode_range(scored(held)))
    await take_range(intake, held, name)
    (file,) = folder.files().values()
    assert (file.index, file.credential, file.sha256) == (0, ANYBODY.label, name.sha256)
    assert not blobs.has(name)
    # Once more, as after an answer that was lost.
    await take_range(intake, held, name)
    assert sums(meters, SCORED_EXAMPLES) == {("coordinator",): 0, ("workers",): 4}


async def test_one_of_two_concurrent_range_commits_is_kept(
    intake: Intake, blobs: BlobStore, folder: RangeFolder
) -> None:
    held = granted_to(intake, "a")
    names = [blobs.put_bytes(encode_range(scored(held, value))) for value in (0.25, 0.5)]
    await asyncio.gather(*(take_range(intake, held, name) for name in names))
    (path,) = folder.path.iterdir()
    assert path.name.endswith(names[0].sha256)


async def test_a_worker_without_a_valid_data_proof_gets_no_more_ranges(
    intake: Intake, blobs: BlobStore, folder: RangeFolder
) -> None:
    held = granted_to(intake, "a")
    assert (held.task.nonce, held.task.proof_ids) == ("nonce", (1, 2))
    name = blobs.put_bytes(encode_range(scored(held)))
    with pytest.raises(LearnerRejectedError, match=r"wrong, and anybody-\w+ gets no more ranges"):
        await take_range(intake, held, name, "q" * 64)
    assert not [*folder.path.iterdir()]
    # Nor does another worker of that credential.
    assert intake.dispatcher.scans.take(registered(intake, "b")) is None
    assert grant(intake.dispatcher.scans, "of another token").lease.key.number == 1


async def test_the_scoring_permission_ends_with_its_token(intake: Intake) -> None:
    workers, secret = intake.dispatcher.workers, "s" * 32
    scoring, training = (
        CallCredentials(worker(f"token:{scores}", scores=scores), secret)
        for scores in (True, False)
    )
    facts = {"versions": VERSIONS, "has_data": True, "caller": scoring.caller}
    worker_id = joined(workers, secret, **facts).worker_id
    workers.require(worker_id, training)
    assert intake.dispatcher.scans.take(workers.note_call(worker_id)) is None
    workers.require(worker_id, scoring)
    assert intake.dispatcher.scans.take(workers.note_call(worker_id)) is not None


@pytest.mark.parametrize("scan", [SCAN, OF_LOSSES], ids=["signals", "losses"])
async def test_an_invalid_range_file_is_refused_and_computed_by_the_job(
    intake: Intake, blobs: BlobStore, folder: RangeFolder, scan: Scan
) -> None:
    intake.dispatcher.scans.note(CLOSED)
    intake.dispatcher.scans.note(replace(OPENED, scan_id=scan.scan_id, scan=scan))
    held = granted_to(intake, "a")
    with pytest.raises(UnknownBlobError):
        await take_range(intake, held, BlobName.of(b"never sent"))
    assert granted_to(intake, "a") == held
    bad = scored(held, float("nan"))
    # Without features, and of three examples.
    few = {"errors": torch.zeros(4, 3)}, {"losses": torch.zeros(3)}
    contents = [encode_range(bad), b"garbage", encode_range(few[scan is OF_LOSSES])]
    with pytest.raises(LearnerRejectedError, match="NaN or infinite"):
        await take_range(intake, held, blobs.put_bytes(contents[0]))
    for number, content in enumerate(contents[1:], start=1):
        again = granted_to(intake, "a")
        assert again.lease.key.number == number
        with pytest.raises(LearnerRejectedError):
            await take_range(intake, again, blobs.put_bytes(content))
    assert folder.files() == {}
    assert intake.dispatcher.scans.take(registered(intake, "a")) is None


def join(bench: Bench, name: str, *, has_data: bool = True) -> str:
    return bench.join(name, versions=VERSIONS, has_data=has_data)


async def next_work(bench: Bench, worker_id: str) -> object:
    return await bench.dispatcher.next_work(worker_id, wait_seconds=60.0)


def waiting_for(bench: Bench, known: Demand) -> asyncio.Task[Demand]:
    return asyncio.create_task(bench.dispatcher.wait_for_demand(known, wait_seconds=60.0))


async def test_a_worker_with_the_data_gets_ranges_before_learners(bench: Bench) -> None:
    seeing, blind, busy = join(bench, "a"), join(bench, "b", has_data=False), join(bench, "c")
    await bench.store.add(made_up_run(num_learners=2))
    learner = await next_work(bench, busy)
    bench.dispatcher.scans.note(OPENED)
    # One that has a learner is told of it first.
    assert await next_work(bench, busy) == learner
    assert isinstance(await next_work(bench, seeing), RangeGrant)
    assert isinstance(await next_work(bench, blind), tuple)


async def test_a_worker_with_other_data_gets_no_range(bench: Bench) -> None:
    bench.dispatcher.scans.note(OPENED)
    other, next_ = join(bench, "a"), join(bench, "b")
    held = cast("RangeGrant", await next_work(bench, other))
    await bench.dispatcher.give_back(held.lease, too_large="the worker's data is another.")
    assert await bench.acquire(other) is None
    again = cast("RangeGrant", await next_work(bench, next_))
    assert again.lease.key == held.lease.key
    await bench.dispatcher.fail(again.lease, error("unread"))
    assert cast("RangeGrant", await next_work(bench, next_)).lease.key.number == 1


async def test_a_waiting_worker_gets_the_first_range_or_learner(bench: Bench) -> None:
    worker = join(bench, "a")
    waits = asyncio.create_task(next_work(bench, worker))
    for _ in range(3):
        await asyncio.sleep(0)
    bench.dispatcher.scans.note(OPENED)
    assert isinstance(await waits, RangeGrant)
    bench.dispatcher.scans.note(CLOSED)
    waits = asyncio.create_task(next_work(bench, worker))
    await asyncio.sleep(0)
    await bench.store.add(made_up_run(num_learners=1))
    assert isinstance(await waits, tuple)


async def test_a_silent_worker_s_range_goes_to_another_worker(bench: Bench) -> None:
    gone, heir = join(bench, "gone"), join(bench, "heir")
    one = replace(SCAN, whole=replace(SCAN.whole, stop=4))
    bench.dispatcher.scans.note(replace(OPENED, scan_id=one.scan_id, scan=one))
    held = cast("RangeGrant", await next_work(bench, gone))
    bench.clock.now += 31.0
    waits = asyncio.create_task(next_work(bench, heir))
    expiry = asyncio.create_task(bench.dispatcher.expire_leases())
    again = cast("RangeGrant", await waits)
    expiry.cancel()
    assert (again.lease.key, again.lease.worker_id) == (held.lease.key, heir)
    with pytest.raises(StaleLeaseError):
        bench.dispatcher.scans.require(held.lease)
    assert not bench.dispatcher.leases.num_learners()


async def test_demand_counts_queued_leased_and_upcoming_learners(bench: Bench) -> None:
    run = made_up_run("a", num_learners=3)
    out = leased(run.learners[0], "w")
    runs = [run.with_learner(out), made_up_run("b", num_learners=2)]
    runs.append(made_up_run("c", num_learners=5, state=RunState.SHARDING).changed(learners=()))
    runs.append(made_up_run("d", state=RunState.MERGING))
    for each in runs:
        await bench.store.add(each)
    assert bench.dispatcher.demand() == Demand(num_queued=4, num_leased=1, num_upcoming=5)


async def test_demand_is_returned_after_a_change_or_at_once_if_unknown(bench: Bench) -> None:
    waiting = waiting_for(bench, Demand())
    await asyncio.sleep(0)
    assert not waiting.done()
    await bench.store.add(made_up_run(num_learners=2))
    known = Demand(num_queued=2)
    assert await waiting == known
    assert await waiting_for(bench, Demand(num_leased=1)) == known
    assert await bench.dispatcher.wait_for_demand(known, wait_seconds=0.01) == known
    bench.store.hold("r", "its data is elsewhere")
    assert bench.dispatcher.demand() == Demand()


async def test_demand_counts_ranges_while_one_waits(bench: Bench) -> None:
    scans = bench.dispatcher.scans
    waiting = waiting_for(bench, Demand())
    await asyncio.sleep(0)
    scans.note(OPENED)
    assert await waiting == Demand(num_ranges=3)
    waiting = waiting_for(bench, Demand(num_ranges=3))
    for name in ("a", "b"):
        grant(scans, name)
        await asyncio.sleep(0)
        # As many as at first: a pool that starts workers by it is not woken for every range.
        assert not waiting.done()
    grant(scans, "c")
    assert await waiting == Demand()
