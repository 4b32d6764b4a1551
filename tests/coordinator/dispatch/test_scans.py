from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import LearnerRejectedError, StaleLeaseError, UnknownBlobError
from lipt.common.observability.metrics import Meters
from lipt.common.signals.passes import encode_range, range_specs
from lipt.common.weights.specs import Weights
from lipt.coordinator.compute.scan import (
    RangeDone,
    RangeFolder,
    ScanClosed,
    WorkerDistrusted,
)
from lipt.coordinator.dispatch.next_work import next_work
from lipt.coordinator.dispatch.range_intake import RangeIntake
from lipt.coordinator.dispatch.scans import RangeGrant, Scans
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.instruments import SCORED_EXAMPLES
from tests.clock import Clock
from tests.coordinator.dispatch.made_up_scan import (
    OPENED,
    SCAN,
    THETA_P,
    VERSIONS,
    seeing_worker,
)


def scored(grant: RangeGrant, value: float = 0.5) -> Weights:
    specs = range_specs(grant.task, SCAN.num_features)
    return {name: torch.full(spec.shape, value, dtype=spec.dtype) for name, spec in specs.items()}


@pytest.fixture
def meters() -> Meters:
    return Meters()


@pytest.fixture
def scans(meters: Meters) -> Scans:
    scans = Scans(30.0, Clock(), meters)
    scans.note(OPENED)
    return scans


def grant(scans: Scans, name: str) -> RangeGrant:
    found = scans.take(seeing_worker(name))
    assert found is not None
    return found


def test_a_worker_that_asks_again_has_the_same_range(scans: Scans) -> None:
    first = grant(scans, "a")
    assert str(first) == "examples 0 to 3"
    assert grant(scans, "a") == first
    assert grant(scans, "b").task.start == 4


@pytest.mark.parametrize(
    "other",
    [
        seeing_worker("a", has_data=False),
        seeing_worker("a", device="NVIDIA"),
        seeing_worker("a", versions=VERSIONS | {"torch": "3"}),
        seeing_worker("a", versions=VERSIONS | {"lipt": "0.2.0"}),
    ],
    ids=["no data", "another device", "another torch", "another lipt"],
)
def test_only_workers_of_the_same_kind_with_the_data_are_given_ranges(
    scans: Scans, other: WorkerRecord
) -> None:
    assert scans.take(other) is None


def test_any_kind_will_do_where_the_scan_says_so(scans: Scans) -> None:
    scans.note(ScanClosed("", 0, 0, scan_id=SCAN.scan_id))
    anywhere = replace(SCAN, kind="")
    scans.note(replace(OPENED, scan_id=anywhere.scan_id, scan=anywhere))
    assert scans.take(seeing_worker("a", device="NVIDIA")) is not None


def test_a_user_s_model_goes_to_workers_that_allow_its_module(scans: Scans) -> None:
    scans.note(ScanClosed("", 0, 0, scan_id=SCAN.scan_id))
    own = replace(SCAN, whole=replace(SCAN.whole, model="mine:net"))
    scans.note(replace(OPENED, scan_id=own.scan_id, scan=own))
    assert scans.take(seeing_worker("a")) is None
    assert scans.take(seeing_worker("a", allowed_modules=("mine",))) is not None


def test_a_range_that_is_done_stops_whoever_still_has_it(scans: Scans, meters: Meters) -> None:
    held = grant(scans, "a")
    assert not scans.heartbeat("a", held.key, held.lease.epoch)
    scans.note(RangeDone("", 0, 0, scan_id=SCAN.scan_id, index=held.lease.index))
    assert scans.heartbeat("a", held.key, held.lease.epoch)
    assert meters.sums(SCORED_EXAMPLES) == {("coordinator",): 4, ("workers",): 0}


def test_a_closed_scan_stops_its_workers(scans: Scans) -> None:
    held = grant(scans, "a")
    scans.note(ScanClosed("", 0, 0, scan_id=SCAN.scan_id))
    assert scans.heartbeat("a", held.key, held.lease.epoch)
    assert scans.take(seeing_worker("a")) is None
    with pytest.raises(StaleLeaseError, match="nobody needs it any more"):
        scans.require("a", held.key, held.lease.epoch)


def test_another_worker_s_lease_is_nobody_else_s(scans: Scans) -> None:
    held = grant(scans, "a")
    with pytest.raises(StaleLeaseError, match="with epoch 1 is over"):
        scans.heartbeat("b", held.key, held.lease.epoch)
    assert scans.has(held.key, held.lease.epoch)
    assert not scans.has(held.key, 77)


def test_a_liar_gets_nothing_any_more_of_any_scan(scans: Scans) -> None:
    scans.note(WorkerDistrusted("", 0, 0, scan_id=SCAN.scan_id, worker_id="a"))
    scans.note(ScanClosed("", 0, 0, scan_id=SCAN.scan_id))
    scans.note(OPENED)
    assert scans.take(seeing_worker("a")) is None
    assert scans.take(seeing_worker("b")) is not None


def test_a_worker_with_other_data_is_given_none_and_another_is(scans: Scans) -> None:
    held = grant(scans, "a")
    scans.give_back(held, declined=True)
    assert scans.take(seeing_worker("a")) is None
    assert grant(scans, "b").lease.index == held.lease.index


def test_weights_of_its_range_are_a_worker_s_to_read_and_two_files_to_send(scans: Scans) -> None:
    assert not scans.may_read(THETA_P, ["a"])
    grant(scans, "a")
    assert scans.may_read(THETA_P, ["a"])
    assert not scans.may_read(BlobName.of(b"other"), ["a"])
    assert not scans.may_read(THETA_P, ["b"])
    files = [BlobName.of(b"%d" % number) for number in range(3)]
    assert [scans.may_send(name, ["a"]) for name in (*files, files[0])] == [True, True, False, True]
    assert not scans.may_send(BlobName("0" * 64, SCAN.max_file_bytes + 1), ["a"])


def test_max_file_bytes_hold_any_range_s_file(scans: Scans) -> None:
    held = grant(scans, "a")
    noise = {
        name: torch.randn(value.shape, generator=torch.Generator().manual_seed(0))
        for name, value in scored(held).items()
    }
    assert len(encode_range(noise)) <= SCAN.max_file_bytes


# What takes results.


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path, max_blob_bytes=2**20)


@pytest.fixture
def folder(tmp_path: Path) -> RangeFolder:
    folder = RangeFolder(tmp_path / "scans", SCAN.scan_id)
    folder.open()
    return folder


async def test_a_result_lies_in_the_scan_s_folder_and_its_blob_is_gone(
    scans: Scans, blobs: BlobStore, folder: RangeFolder, meters: Meters
) -> None:
    held = grant(scans, "a")
    name = blobs.put_bytes(encode_range(scored(held)))
    with RangeIntake(scans, blobs, folder.path.parent) as intake:
        await intake.take("a", held.key, held.lease.epoch, name)
        (file,) = folder.files().values()
        assert (file.index, file.who, file.sha256) == (0, "a", name.sha256)
        assert not blobs.has(name)
        # Once more, as after an answer that was lost.
        await intake.take("a", held.key, held.lease.epoch, name)
    assert meters.sums(SCORED_EXAMPLES) == {("coordinator",): 0, ("workers",): 4}


async def test_what_is_no_range_is_refused_and_left_to_the_job(
    scans: Scans, blobs: BlobStore, folder: RangeFolder
) -> None:
    held = grant(scans, "a")
    bad = scored(held, float("nan"))
    contents = [encode_range(bad), b"garbage", encode_range({"errors": torch.zeros(4, 3)})]
    with RangeIntake(scans, blobs, folder.path.parent) as intake:
        with pytest.raises(LearnerRejectedError, match="NaN or infinite"):
            await intake.take("a", held.key, held.lease.epoch, blobs.put_bytes(contents[0]))
        for number, content in enumerate(contents[1:], start=1):
            again = grant(scans, "a")
            assert again.lease.index == number
            with pytest.raises(LearnerRejectedError):
                await intake.take("a", again.key, again.lease.epoch, blobs.put_bytes(content))
    assert folder.files() == {}
    assert scans.take(seeing_worker("a")) is None


async def test_a_result_that_was_not_uploaded_is_asked_for(
    scans: Scans, blobs: BlobStore, folder: RangeFolder
) -> None:
    held = grant(scans, "a")
    intake = RangeIntake(scans, blobs, folder.path.parent)
    with intake, pytest.raises(UnknownBlobError):
        await intake.take("a", held.key, held.lease.epoch, BlobName.of(b"never sent"))
    assert grant(scans, "a") == held


# What a worker does next.


class _Dispatcher:
    """Learners that come when the test says so."""

    def __init__(self, scans: Scans, *, has_data: bool = True) -> None:
        self.scans = scans
        self.workers = SimpleNamespace(heard=lambda name: seeing_worker(name, has_data=has_data))
        self.learner: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.holds: object = None

    def held_by(self, worker_id: str) -> object:
        return self.holds

    async def acquire(self, worker_id: str, *, wait_seconds: float) -> Any:
        return await asyncio.shield(self.learner)


async def _next(dispatcher: _Dispatcher) -> object:
    return await next_work(cast("Any", dispatcher), "a", wait_seconds=60.0)


async def test_a_range_goes_before_a_learner(scans: Scans) -> None:
    dispatcher = _Dispatcher(scans)
    dispatcher.learner.set_result("learner")
    assert isinstance(await _next(dispatcher), RangeGrant)


async def test_a_worker_that_has_a_learner_is_told_of_it_first(scans: Scans) -> None:
    dispatcher = _Dispatcher(scans)
    dispatcher.holds = "its learner"
    dispatcher.learner.set_result("learner")
    assert await _next(dispatcher) == "learner"


async def test_a_worker_without_the_data_gets_learners(scans: Scans) -> None:
    dispatcher = _Dispatcher(scans, has_data=False)
    dispatcher.learner.set_result("learner")
    assert await _next(dispatcher) == "learner"


async def test_a_worker_that_waits_gets_whichever_comes_first() -> None:
    scans = Scans(30.0, Clock())
    waits = asyncio.create_task(_next(_Dispatcher(scans)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    scans.note(OPENED)
    assert isinstance(await waits, RangeGrant)
    other = _Dispatcher(Scans(30.0, Clock()))
    waits = asyncio.create_task(_next(other))
    await asyncio.sleep(0)
    other.learner.set_result("learner")
    assert await waits == "learner"
