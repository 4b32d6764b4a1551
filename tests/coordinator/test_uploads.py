"""Quotas by letters (a peer may have 100, all may have 150), and as peers meet them."""

import math
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from lipt.common.access import Role
from lipt.common.blobs.blob import BlobName, blob_to_proto, fill_chunk
from lipt.common.errors import (
    ForeignBlobError,
    StateError,
    StorageFullError,
    WrongOffsetError,
    from_rpc_error,
)
from lipt.common.requests import Budget, SubsetRequest
from lipt.common.states import RunState
from lipt.common.tensor_files import pack
from lipt.coordinator.access.caller import ANYBODY, CallCredentials, Caller
from lipt.coordinator.app import App
from lipt.coordinator.compute.jobs.selection import Diagnosed, DiagnoseData, SelectSubset
from lipt.coordinator.dispatch.leases import (
    LearnerAssignment,
    LearnerGrant,
    LearnerLease,
    RangeGrant,
)
from lipt.coordinator.runs.transitions import done
from lipt.coordinator.server import serving
from lipt.coordinator.settings import StorageSettings
from lipt.coordinator.state.records import LearnerResult, RunRecord
from lipt.coordinator.subsets import DiagnosisQuery
from lipt.coordinator.uploads import (
    Accounts,
    Allowance,
    Quota,
    WorkerBlobs,
    free_bytes,
    resolve_quota,
)
from lipt.v1 import blob_pb2, blob_pb2_grpc, config_pb2
from tests.clock import Clock
from tests.coordinator.dispatch.conftest import Bench
from tests.coordinator.dispatch.test_scans import OPENED, THETA_P, VERSIONS
from tests.coordinator.fakes import THETA as WEIGHTS
from tests.coordinator.fakes import complete, make_settings, opened, pretraining, until
from tests.coordinator.made_up_runs import holder, made_up_run, shard_of
from tests.serving import own_user_channel

QUOTA = Quota(max_bytes=150, max_bytes_per_peer=100, max_unfinished=4, max_unfinished_per_peer=3)
LEASE = Allowance(LearnerLease(LearnerAssignment("r", 0), 1, "w"), max_files=2, max_file_bytes=60)


class Desk:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.live = {LEASE.lease}
        self.sent: dict[tuple[str, str], tuple[str, BlobName]] = {}
        self.accounts = Accounts(QUOTA, clock=clock, is_live=lambda lease: lease in self.live)

    def begin(
        self, letter: str, size: int, peer: str = "one", allowance: Allowance | None = None
    ) -> list[str]:
        name = named(letter, size)
        part = self.accounts.part_of(name, peer)
        leaving = self.accounts.begin(part, name, peer, allowance)
        self.sent[letter, peer] = part, name
        return [part[0] for part in leaving]

    def end(
        self, letter: str, peer: str = "one", *, finished: bool = False, kept: bool = False
    ) -> None:
        self.accounts.end(*self.sent.pop((letter, peer)), finished=finished, kept=kept)

    def cut(self, letter: str, size: int, peer: str = "one") -> list[str]:
        leaving = self.begin(letter, size, peer)
        self.end(letter, peer, kept=True)
        return leaving

    def store(
        self, letter: str, size: int, peer: str = "one", allowance: Allowance | None = None
    ) -> None:
        self.begin(letter, size, peer, allowance)
        self.end(letter, peer, finished=True)


def named(letter: str, size: int) -> BlobName:
    return BlobName(letter * 64, size)


@pytest.fixture
def desk(clock: Clock) -> Desk:
    return Desk(clock)


def test_declared_and_stored_bytes_count(desk: Desk) -> None:
    desk.begin("a", 60)
    with pytest.raises(StorageFullError, match=r"this peer would take 101 bytes.*at most 100 are"):
        desk.begin("b", 41)
    desk.end("a", finished=True)
    with pytest.raises(StorageFullError, match=r"raise storage\.max_bytes") as caught:
        desk.begin("b", 41)
    assert caught.value.retry_after_seconds is None  # waiting a little does not help
    desk.store("b", 40)
    # The others have theirs.
    desk.store("c", 50, "other")
    with pytest.raises(StorageFullError, match=r"all peers together would take 151 bytes"):
        desk.begin("d", 1, "third")


def test_unfinished_uploads_are_limited_with_a_retry_time(desk: Desk) -> None:
    for letter in "abc":
        desk.cut(letter, 1)
    with pytest.raises(StorageFullError, match=r"number 4 of this peer; at most 3") as caught:
        desk.begin("d", 1)
    assert caught.value.retry_after_seconds == 10.0
    desk.cut("d", 1, "other")
    with pytest.raises(StorageFullError, match=r"number 5 of all peers together; at most 4"):
        desk.begin("e", 1, "third")


def test_senders_of_a_blob_have_parts_of_their_own(desk: Desk) -> None:
    desk.begin("a", 60)
    # A second sender, or the same one again, has another part, which counts as well.
    desk.begin("a", 50, "other")
    with pytest.raises(StorageFullError, match="this peer would take 120 bytes"):
        desk.begin("a", 60)
    name = named("a", 60)
    assert desk.accounts.part_of(name, "one") == f"{name.sha256}.one.1"
    desk.end("a", kept=True)
    assert desk.accounts.part_of(name, "one") == f"{name.sha256}.one.0"
    desk.end("a", "other", finished=True)
    desk.begin("a", 60)
    desk.end("a", finished=True)
    # The file is there once.
    assert desk.accounts.num_bytes(finished=True) == 50
    assert desk.accounts.keys() == {name.sha256}


def test_a_running_upload_counts_once(desk: Desk) -> None:
    desk.cut("a", 90)
    assert desk.begin("a", 95) == []
    desk.clock.now += 1000
    with pytest.raises(StorageFullError, match="all peers together"):
        desk.begin("b", 100, "other")
    desk.end("a")
    assert desk.accounts.num_unfinished() == 0
    assert desk.begin("b", 100, "other") == []


def test_idle_unfinished_uploads_are_removed_oldest_first(desk: Desk) -> None:
    for letter in "abc":
        desk.clock.now += 1
        desk.cut(letter, 30)
    desk.clock.now += 119  # a and b have been silent for 121 and 120 s
    assert desk.cut("d", 30) == ["a"]
    with pytest.raises(StorageFullError):
        desk.begin("e", 100)  # c is too young to leave
    assert desk.begin("e", 1) == ["b"]


def test_uploads_of_other_callers_are_removed_at_the_total_limit(desk: Desk) -> None:
    desk.cut("a", 100, "gone")
    desk.clock.now += 121
    assert desk.begin("b", 100) == ["a"]


def test_full_quotas_of_trainers_do_not_block_workers(desk: Desk) -> None:
    desk.store("a", 100, "trainer")
    desk.store("b", 50, "other trainer")
    for letter in "cd":
        desk.store(letter, 60, "worker", LEASE)
    for letter, size in (("e", 1), ("c", 61)):
        with pytest.raises(ForeignBlobError, match="allows 2 files of at most 60 bytes"):
            desk.begin(letter, size, "worker", LEASE)
    # One that goes on is not new, and files of a lease that lives are not left over.
    assert desk.begin("c", 60, "worker", LEASE) == []


@pytest.mark.parametrize(
    ("peers", "trained", "whose", "free"),
    [
        # 120 of the peer's 100 bytes are left over, and another worker notices nothing.
        (("greedy", "greedy", "greedy"), 0, "this peer would take 120 bytes", True),
        # 180 of all 150 bytes are left over: the next file is charged to anybody.
        (("gone", "left", "lost"), 100, "all peers together would take 160 bytes", False),
    ],
)
def test_files_of_ended_leases_are_limited(
    desk: Desk, peers: tuple[str, ...], trained: int, whose: str, free: bool
) -> None:
    for number, (letter, peer) in enumerate(zip("abc", peers, strict=True)):
        held = LearnerLease(LearnerAssignment("r", 9), number, "w")
        lease = Allowance(held, 1, max_file_bytes=60)
        desk.live = {lease.lease}
        desk.store(letter, 60, peer, lease)
    desk.live = {LEASE.lease}
    desk.store("d", trained, "trainer")
    with pytest.raises(StorageFullError, match=whose):
        desk.begin("e", 60, "greedy", LEASE)
    if free:
        assert desk.begin("e", 60, "worker", LEASE) == []


def test_recorded_blobs_do_not_count_against_a_quota(desk: Desk) -> None:
    desk.store("a", 60)
    desk.begin("b", 40)
    desk.accounts.forget(named(letter, 1).sha256 for letter in "abc")
    with pytest.raises(StorageFullError):
        desk.begin("c", 61)
    assert desk.begin("c", 60) == []


def test_leftovers_of_an_earlier_process_count_only_in_total(desk: Desk) -> None:
    desk.accounts.restore({named("a", 1).sha256: 80}, {f"{named('b', 1).sha256}.one.0": 20})
    assert desk.accounts.num_bytes(finished=True) == 80
    assert desk.accounts.num_bytes(finished=False) == 20
    assert desk.accounts.num_unfinished() == 1
    with pytest.raises(StorageFullError, match="all peers together would take 160"):
        desk.begin("c", 60)
    # Who goes on with it has it from then on.
    desk.cut("b", 60)
    with pytest.raises(StorageFullError, match="this peer would take 101"):
        desk.begin("c", 41)


@pytest.mark.parametrize(
    ("given", "quota"),
    [
        ({}, Quota(300, 150, 512, 32)),
        ({"max_bytes": 80}, Quota(80, 40, 512, 32)),
        ({"max_bytes_per_peer": 30}, Quota(300, 30, 512, 32)),
        ({"max_bytes_per_peer": 900, "max_unfinished": 5}, Quota(300, 300, 5, 5)),
    ],
)
def test_the_default_quota_follows_the_disk(given: dict[str, int], quota: Quota) -> None:
    assert resolve_quota(StorageSettings.model_validate(given), usable_bytes=900) == quota


def test_free_bytes_are_the_disk_s(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0
    with pytest.raises(StateError, match="cannot be used"):
        free_bytes(tmp_path / "nowhere")


THETA, OTHER = BlobName.of(b"theta*"), BlobName.of(b"other")
SECRET = "5" * 32


def test_a_lease_s_quota_allows_every_file_twice() -> None:
    run = made_up_run().changed(initial_weights=BlobName("0" * 64, 1000))
    learners = run.config.learners.model_copy(update={"num_snapshots": 3})
    run = run.changed(config=run.config.model_copy(update={"learners": learners}))
    held = LearnerGrant(run, run.learners[0], cast("LearnerLease", LEASE.lease))
    allowed = Allowance(held.lease, 8, max_file_bytes=2000 + 2**20)
    assert Allowance.of_learner(held) == allowed
    held = held._replace(run=made_up_run().changed(initial_weights=None))
    assert Allowance.of_learner(held) == Allowance(held.lease, 2, max_file_bytes=2**20)


class Blobs(WorkerBlobs):
    """The blob rights of workers with learners of one run."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.dispatcher)
        self.bench = bench

    async def leased(self, shown: CallCredentials) -> LearnerGrant:
        """The learner of a worker that registers with this secret."""
        granted = await self.bench.acquire(self.bench.join(shown.secret, caller=shown.caller))
        assert granted is not None
        return granted


@pytest.fixture
async def blobs(bench: Bench) -> Blobs:
    await bench.store.add(made_up_run())
    return Blobs(bench)


async def test_a_caller_without_a_worker_id_acts_as_a_trainer(blobs: Blobs) -> None:
    await blobs.leased(CallCredentials(ANYBODY, SECRET))
    trainer = CallCredentials(Caller("t", "t", frozenset({Role.TRAINER})))
    for shown in (CallCredentials(ANYBODY), trainer):
        blobs.require_readable(OTHER, shown)
        assert blobs.allowance(OTHER, shown) is None


async def test_a_worker_s_blobs_are_those_of_its_lease(blobs: Blobs) -> None:
    shown = CallCredentials(ANYBODY, SECRET)
    with pytest.raises(ForeignBlobError):
        blobs.require_readable(THETA, shown)
    held = await blobs.leased(shown)
    for name in (THETA, shard_of(held.learner)):
        blobs.require_readable(name, shown)
    for other in (OTHER, shard_of(held.run.learners[1])):
        with pytest.raises(ForeignBlobError, match="not of this worker's assignment"):
            blobs.require_readable(other, shown)
    allowed = blobs.allowance(OTHER, shown)
    assert allowed is not None
    assert allowed.lease == held.lease
    await blobs.bench.dispatcher.give_back(held.lease)
    for refused in (blobs.require_readable, blobs.allowance):
        with pytest.raises(ForeignBlobError, match="this one has none"):
            refused(THETA, shown)
    # Another lease of the same learner begins anew.
    again = await blobs.leased(shown)
    allowed = blobs.allowance(OTHER, shown)
    assert allowed is not None
    assert allowed.lease == again.lease == held.lease._replace(epoch=2)


async def test_a_worker_with_a_range_reads_its_weights_and_sends_two_files(bench: Bench) -> None:
    shown = CallCredentials(ANYBODY, SECRET)
    worker = bench.join(SECRET, versions=VERSIONS, has_data=True)
    bench.dispatcher.scans.note(OPENED)
    grant = await bench.dispatcher.next_work(worker, wait_seconds=0.0)
    assert isinstance(grant, RangeGrant)
    blobs = WorkerBlobs(bench.dispatcher)
    blobs.require_readable(THETA_P, shown)
    with pytest.raises(ForeignBlobError):
        blobs.require_readable(OTHER, shown)
    allowed = Allowance(grant.lease, 2, grant.scan.max_file_bytes)
    assert blobs.allowance(OTHER, shown) == allowed
    # Who may not score has no range, and so reads no weights either.
    trains = CallCredentials(Caller("token:1", "the token 1", frozenset({Role.WORKER})), "6" * 32)
    worker = bench.join(trains.secret, versions=VERSIONS, has_data=True, caller=trains.caller)
    assert await bench.dispatcher.next_work(worker, wait_seconds=0.0) is None
    with pytest.raises(ForeignBlobError):
        blobs.require_readable(THETA_P, trains)


async def test_a_lease_goes_on_after_a_restart_before_registration(blobs: Blobs) -> None:
    shown = CallCredentials(ANYBODY, SECRET)
    shard = shard_of((await blobs.leased(shown)).learner)
    await blobs.bench.restart()
    blobs = Blobs(blobs.bench)
    blobs.require_readable(shard, shown)
    assert blobs.allowance(OTHER, shown) is not None
    with pytest.raises(ForeignBlobError):
        blobs.require_readable(shard, CallCredentials(ANYBODY, "6" * 32))


# Another connection, however often the address was dialled.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
LIMITS = {"max_bytes": 1000, "max_bytes_per_peer": 700}


class Peer:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.blobs: Any = blob_pb2_grpc.BlobServiceStub(channel)

    async def send(self, content: bytes, *, up_to: int | None = None) -> BlobName:
        name = BlobName.of(content)
        request = blob_pb2.WriteBlobRequest(blob=blob_to_proto(name))
        fill_chunk(request.chunk, 0, content[:up_to])
        try:
            await self.blobs.WriteBlob(iter([request]), timeout=60)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return name

    async def cut(self, content: bytes) -> None:
        with pytest.raises(WrongOffsetError):
            await self.send(content, up_to=1)


class Served:
    def __init__(self, app: App, address: str, stack: AsyncExitStack) -> None:
        self.app = app
        self._address = address
        self._stack = stack

    async def peer(self) -> Peer:
        channel = own_user_channel(self._address, _OPTIONS)
        return Peer(await self._stack.enter_async_context(channel))

    def figures(self, name: str) -> dict[str, float]:
        readings = self.app.storage.readings()
        (found,) = [figures for gauge, figures in readings.items() if gauge.name == name]
        return {"".join(labels): figure for labels, figure in found.items()}


@asynccontextmanager
async def served(directory: Path, **storage: object) -> AsyncIterator[Served]:
    settings = make_settings(directory, storage={**LIMITS, **storage})
    async with opened(settings) as app, serving(app) as address, AsyncExitStack() as stack:
        yield Served(app, address, stack)


async def in_training(app: App) -> RunRecord:
    run = await app.requests.create("q", "mine", config_pb2.RunConfig())
    return await until(app, run.run_id, lambda run: run.state is RunState.TRAINING)


async def test_a_restart_counts_existing_files(tmp_path: Path) -> None:
    async with served(tmp_path) as coordinator:
        await in_training(coordinator.app)
        peer = await coordinator.peer()
        await peer.send(b"a" * 600)
        greedy = await coordinator.peer()
        await greedy.cut(b"b" * 100)
        with pytest.raises(StorageFullError, match=r"this peer would take 701.*at most 700"):
            await greedy.send(b"c" * 601)
        # What is refused has left no file, and no other peer notices.
        assert len(list((tmp_path / "state" / "uploads").iterdir())) == 1
        assert coordinator.figures("lipt_storage_bytes")["reserved"] == 100
    async with served(tmp_path) as coordinator:
        # Of the beginning one byte: what else is to come is declared when it goes on. What the
        # coordinator made for its run is no caller's upload.
        assert coordinator.figures("lipt_storage_bytes")["uploaded"] == 600
        assert coordinator.figures("lipt_unfinished_uploads") == {"": 1}
        peer = await coordinator.peer()
        with pytest.raises(StorageFullError, match="all peers together would take 1001 bytes"):
            await peer.send(b"c" * 400)
        assert await peer.send(b"c" * 399)


async def test_blobs_of_a_run_do_not_count_against_a_quota(tmp_path: Path) -> None:
    async with served(tmp_path) as coordinator:
        peer = await coordinator.peer()
        name = await peer.send(b"g" * 700)
        run = await in_training(coordinator.app)
        await coordinator.app.store.update(
            run.run_id,
            lambda run: run.with_learner(done(run.learners[0], holder(), LearnerResult(blob=name))),
        )
        assert coordinator.figures("lipt_storage_bytes")["uploaded"] == 0
        assert await peer.send(b"h" * 700)


async def test_a_queried_blob_is_not_removed_for_a_while(tmp_path: Path) -> None:
    async with served(tmp_path) as coordinator:
        peer = await coordinator.peer()
        names = [await peer.send(content) for content in (b"asked", b"sent", b"read", b"left")]
        for name in names:
            os.utime(coordinator.app.blobs.path(name), (1000.0, 1000.0))
        asked, _, read, left = map(blob_to_proto, names)
        await peer.blobs.GetUploadStatus(blob_pb2.GetUploadStatusRequest(blob=asked))
        await peer.send(b"sent")
        async for _ in peer.blobs.ReadBlob(blob_pb2.ReadBlobRequest(blob=read)):
            pass
        await coordinator.app.storage.collect()
        assert [coordinator.app.blobs.has(name) for name in names] == [True, True, True, False]
        assert coordinator.figures("lipt_storage_bytes")["uploaded"] == 13
        answer = await peer.blobs.GetUploadStatus(blob_pb2.GetUploadStatusRequest(blob=left))
        assert not answer.complete


async def test_blobs_of_an_open_request_are_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(tmp_path)
    compute = pretraining(settings.state_dir)
    removed: list[bool] = []
    async with opened(settings, compute) as app:
        name = app.blobs.put_bytes(pack(WEIGHTS))

        def expire(_: object = None) -> None:
            removed.append(app.blobs.expiry.remove_blob(name.sha256, before=math.inf))

        select = compute.answers[SelectSubset]
        assert callable(select)
        blob = app.blobs.put_bytes(b"findings")
        compute.answers[SelectSubset] = lambda job: (expire(), select(job))[1]
        compute.answers[DiagnoseData] = lambda job: (expire(), Diagnosed(blob, "cpu"))[1]
        monkeypatch.setattr(app.requests.admission, "_check_weights", lambda *_: (expire(), "")[1])
        given = config_pb2.RunConfig(initialization={"weights_sha256": name.sha256})
        await app.requests.create("q", "mine", given)
        await complete(app, "mine")
        asked = SubsetRequest(run="mine", strategy="uniform", budget=Budget(0.1), weights=name)
        await app.answers.subset(asked, lambda _: None, "me")
        await app.answers.diagnosis(DiagnosisQuery(features=name), lambda _: None, "me")
        assert removed == [False] * 3
        expire()
        assert removed[-1]
