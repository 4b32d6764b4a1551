"""One range's way through the worker; the coordinator is the test's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.blobs.store import BlobStore
from lipt.common.config.tasks import ScoringTask
from lipt.common.data import Dataset, open_dataset
from lipt.common.errors import (
    ForeignBlobError,
    LearnerStoppedError,
    OtherDataError,
    OverLimitError,
    StaleLeaseError,
)
from lipt.common.images.formats import ImageFormat
from lipt.common.signals.passes import read_range, score_range
from lipt.common.weights.files import pack
from lipt.worker.client import Assignment, LeaseKeeper
from lipt.worker.instruments import BLOB_BYTES, SCORED, Metering
from tests.meters import sums
from tests.tiny import linear
from tests.worker.fake_client import FakeClient, make_worker

CPU = torch.device("cpu")

pytest.importorskip("sklearn")


class World:
    """A worker that has the digits before it, and the coordinator that the test plays."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.fake = FakeClient(directory / "coordinator")
        self.metering = Metering()
        self.stopping = False
        self.cache = BlobStore(directory / "cache", max_blob_bytes=2**24)
        self.model = linear(num_classes=10)
        self.digits = open_dataset("digits")
        worker = make_worker(self.fake, self.cache, **{"worker_data": "digits", **settings})
        self.worker = replace(worker, metering=self.metering)
        self.task = ScoringTask(
            model="tests.tiny:linear",
            num_classes=10,
            image=ImageFormat(1, 8, 8, mean=(0.5,), std=(0.25,)),
            fingerprint=self.digits.fingerprint,
            start=100,
            stop=190,
            batch_size=32,
            threads=1,
        )
        self.assignment = Assignment(
            assignment_id="scan-1/3",
            epoch=1,
            heartbeat_seconds=1.0,
            initial_weights=self.fake.blobs.store.put_bytes(pack(self.model.state_dict())),
            task=self.task,
        )

    def run(self, **changes: Any) -> None:
        assignment = replace(self.assignment, task=replace(self.task, **changes))
        lease = LeaseKeeper(self.fake.client, assignment, self.worker.events)
        self.worker.carry_out(assignment, lease, lambda: self.stopping)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_range_s_values_are_handed_in(world: World) -> None:
    world.run()
    ((worker_id, name, report, snapshots),) = world.fake.committed
    assert (worker_id, snapshots) == ("w", ())
    task = world.task
    errors, features = read_range(world.fake.blobs.store.read_bytes(name), task, 64)
    here = score_range(world.model, world.digits, task, device=CPU)
    assert torch.equal(errors, here["errors"])
    assert torch.equal(features, here["features"])
    assert report.bytes_received == world.assignment.initial_weights.size_bytes
    assert sums(world.metering.meters, SCORED) == {(): 90}
    assert sums(world.metering.meters, BLOB_BYTES)["sent",] == name.size_bytes


def test_data_is_opened_at_the_size_that_the_model_sees(world: World) -> None:
    large = ImageFormat(1, 16, 16, mean=(0.5,), std=(0.25,))
    assert world.worker.dataset(replace(world.task, image=large)).inputs.height == 16  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fingerprint": "0" * 64}, "data has 0000"),
        ({"fingerprint": "full-" + "0" * 64}, "data has full-0000"),
        ({"image": ImageFormat(3, 8, 8, mean=(0.5,) * 3, std=(0.25,) * 3)}, "and 3x8x8 images"),
    ],
    ids=["sampled", "full", "colours"],
)
def test_a_range_of_other_data_is_declined(
    world: World, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(OverLimitError, match="--worker-data") as refusal:
        world.run(**changes)
    assert words in str(refusal.value)
    assert world.fake.committed == []


def test_a_range_that_asks_for_too_much_is_declined_before_anything_is_fetched(
    world: World,
) -> None:
    with pytest.raises(OverLimitError, match="asks for 13 threads"):
        world.run(threads=13)
    assert world.fake.blobs.reads == []


def test_a_worker_that_stops_leaves_between_two_batches(world: World) -> None:
    world.stopping = True
    with pytest.raises(LearnerStoppedError):
        world.run()


def test_a_range_that_somebody_else_has_done_is_no_failure(world: World) -> None:
    world.run()
    world.fake.blobs.failures = [ForeignBlobError("this one has none.")]
    with pytest.raises(StaleLeaseError, match="somebody was quicker"):
        world.run(start=0, stop=64)


def test_data_that_changes_while_it_is_scored_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as changing:
        changing.setattr(Dataset, "has_changed", lambda _: True)
        with pytest.raises(OtherDataError, match="have changed while they were scored"):
            world.run()
    assert world.fake.committed == []
    world.run()
    assert len(world.fake.committed) == 1
