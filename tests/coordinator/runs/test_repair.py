from __future__ import annotations

from pathlib import Path

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import CorruptBlobError
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.compute.jobs.pretraining import (
    CutShards,
    DamagedLearners,
    InitializeWeights,
    MakeSoup,
    SoupResult,
)
from lipt.coordinator.compute.messages import Asked
from lipt.coordinator.runs.repair import restore, restore_inputs
from lipt.coordinator.state.records import RunRecord
from tests.coordinator.fakes import SOUP_RECORD, FakeCompute
from tests.coordinator.made_up_runs import made_up_run

# What `made_up_run` names.
THETA, SHARDS, THETA_P = b"theta*", (b"0", b"1", b"2"), b"theta_p"


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    """All files of `made_up_run`'s run, and a theta_p."""
    blobs = BlobStore(tmp_path, max_blob_bytes=1000)
    for content in (THETA, *SHARDS, THETA_P):
        blobs.put_bytes(content)
    return blobs


@pytest.fixture
def compute(blobs: BlobStore) -> FakeCompute:
    """Makes all of them again, as they were."""
    return FakeCompute(
        {
            InitializeWeights: lambda _: blobs.put_bytes(THETA),
            CutShards: lambda _: [blobs.put_bytes(content) for content in SHARDS],
            MakeSoup: lambda _: SoupResult(blobs.put_bytes(THETA_P), SOUP_RECORD, {}),
        }
    )


@pytest.fixture
def ready() -> RunRecord:
    made = made_up_run(num_learners=2, state=RunState.READY)
    learner = made.learners[1].changed(state=LearnerState.DONE, result=BlobName.of(b"learner"))
    return made.with_learner(learner).changed(pretrained_weights=BlobName.of(THETA_P))


async def restore_theta_p(run: RunRecord, blobs: BlobStore, compute: FakeCompute) -> list[str]:
    wanted = [BlobName.of(THETA_P)]
    await restore(run, wanted, blobs, compute.queue, lambda _: None, Asked(run.run_id))
    return compute.kinds


@pytest.mark.parametrize(
    ("damage", "also", "made"),
    [
        (THETA_P, (), []),
        (b"theta_q", (), ["MakeSoup"]),
        (b"", (), ["MakeSoup"]),
        (None, (), ["MakeSoup"]),
        (None, (THETA,), ["InitializeWeights", "MakeSoup"]),
    ],
)
async def test_weights_that_are_not_whole_are_made_of_the_learners_that_were_in(
    ready: RunRecord,
    blobs: BlobStore,
    compute: FakeCompute,
    damage: bytes | None,
    also: tuple[bytes, ...],
    made: list[str],
) -> None:
    path = blobs.path(BlobName.of(THETA_P))
    path.unlink() if damage is None else path.write_bytes(damage)
    for content in also:
        blobs.path(BlobName.of(content)).unlink()
    assert await restore_theta_p(ready, blobs, compute) == made
    assert blobs.read_bytes(BlobName.of(THETA_P)) == THETA_P
    if made:
        assert compute.jobs[-1].learners == ((1, BlobName.of(b"learner")),)


@pytest.mark.parametrize(
    "answer", [DamagedLearners((0, 1)), SoupResult(BlobName.of(b"other"), SOUP_RECORD, {})]
)
async def test_weights_that_cannot_be_made_again_are_said_to_be_lost(
    ready: RunRecord, blobs: BlobStore, compute: FakeCompute, answer: object
) -> None:
    blobs.path(BlobName.of(THETA_P)).unlink()
    compute.answers[MakeSoup] = answer
    lost = rf"1 files of run name-r .*{BlobName.of(THETA_P).sha256[:12]}.*Start the run again\."
    with pytest.raises(CorruptBlobError, match=lost):
        await restore_theta_p(ready, blobs, compute)


@pytest.mark.parametrize(
    ("damaged", "made"),
    [
        ((), []),
        ((THETA,), ["InitializeWeights"]),
        ((SHARDS[1],), ["CutShards"]),
        ((SHARDS[0], THETA, SHARDS[2]), ["InitializeWeights", "CutShards"]),
    ],
)
async def test_inputs_that_are_not_whole_are_made_again(
    blobs: BlobStore,
    compute: FakeCompute,
    damaged: tuple[bytes, ...],
    made: list[str],
) -> None:
    for content in damaged:
        blobs.path(BlobName.of(content)).write_bytes(content.swapcase() + b"!")
    await restore_inputs(made_up_run(), blobs, compute.queue, lambda _: None)
    assert compute.kinds == made
    assert all(blobs.is_whole(BlobName.of(content)) for content in (THETA, *SHARDS))


async def test_inputs_without_need_are_left_alone(blobs: BlobStore, compute: FakeCompute) -> None:
    blobs.path(BlobName.of(SHARDS[2])).unlink()
    run = made_up_run()
    done = run.with_learner(run.learners[2].changed(state=LearnerState.DONE))
    for quiet in (done, run.changed(initial_weights=None, learners=())):
        await restore_inputs(quiet, blobs, compute.queue, lambda _: None)
    assert compute.kinds == []
