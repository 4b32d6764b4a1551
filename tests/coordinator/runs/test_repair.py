from __future__ import annotations

from collections.abc import Callable
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
from lipt.coordinator.runs.repair import restore_inputs, restore_pretrained_weights
from lipt.coordinator.state.records import RunRecord
from tests.coordinator.fakes import SOUP_RECORD, FakeCompute

THETA_P = b"theta_p"
# What `make_run` names.
THETA, SHARDS = b"theta*", (b"0", b"1", b"2")


def kitchen(blobs: BlobStore, answer: DamagedLearners | bytes = b"") -> FakeCompute:
    """Makes the soup that it is told to make."""
    if isinstance(answer, DamagedLearners):
        return FakeCompute({MakeSoup: answer})
    return FakeCompute({MakeSoup: lambda _: SoupResult(blobs.put_bytes(answer), SOUP_RECORD, {})})


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path, max_blob_bytes=1000)


@pytest.fixture
def run(make_run: Callable[..., RunRecord], blobs: BlobStore) -> RunRecord:
    made = make_run(num_learners=2, state=RunState.READY)
    blobs.put_bytes(THETA)
    learner = made.learners[1].changed(state=LearnerState.DONE, result=BlobName.of(b"learner"))
    return made.with_learner(learner).changed(pretrained_weights=blobs.put_bytes(THETA_P))


async def restore(run: RunRecord, blobs: BlobStore, compute: FakeCompute) -> None:
    await restore_pretrained_weights(run, blobs, compute.queue, lambda _: None, Asked(run.run_id))


async def test_whole_weights_are_left_alone(run: RunRecord, blobs: BlobStore) -> None:
    compute = kitchen(blobs)
    await restore(run, blobs, compute)
    assert compute.jobs == []


@pytest.mark.parametrize("damage", [b"theta_q", b"", None])
async def test_weights_that_are_not_whole_are_made_of_the_learners_that_were_in(
    run: RunRecord, blobs: BlobStore, damage: bytes | None
) -> None:
    assert run.pretrained_weights is not None
    path = blobs.path(run.pretrained_weights)
    path.unlink() if damage is None else path.write_bytes(damage)
    compute = kitchen(blobs, THETA_P)
    await restore(run, blobs, compute)
    (order,) = compute.jobs
    assert order.learners == ((1, BlobName.of(b"learner")),)
    assert blobs.read_bytes(run.pretrained_weights) == THETA_P


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (DamagedLearners((0, 1)), r"so were the learners 0, 1\. Start the run again"),
        (b"other", r"what was made of its learners now is d9298a10d1b0"),
    ],
)
async def test_weights_that_cannot_be_made_again_are_said_to_be_lost(
    run: RunRecord, blobs: BlobStore, answer: DamagedLearners | bytes, why: str
) -> None:
    assert run.pretrained_weights is not None
    blobs.path(run.pretrained_weights).unlink()
    with pytest.raises(CorruptBlobError, match=f"theta_p of run name-r.*{why}"):
        await restore(run, blobs, kitchen(blobs, answer))


async def made_again(run: RunRecord, blobs: BlobStore, theta: bytes = THETA) -> list[str]:
    """Restore a run's inputs with jobs that make this theta* and the shards; which were done."""
    compute = FakeCompute(
        {
            InitializeWeights: lambda _: blobs.put_bytes(theta),
            CutShards: lambda _: [blobs.put_bytes(content) for content in SHARDS],
        }
    )
    await restore_inputs(run, blobs, compute.queue, lambda _: None)
    return compute.kinds


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
    make_run: Callable[..., RunRecord],
    blobs: BlobStore,
    damaged: tuple[bytes, ...],
    made: list[str],
) -> None:
    for content in (THETA, *SHARDS):
        blobs.put_bytes(content)
    for content in damaged:
        blobs.path(BlobName.of(content)).write_bytes(content.swapcase() + b"!")
    assert await made_again(make_run(), blobs) == made
    assert all(blobs.is_whole(BlobName.of(content)) for content in (THETA, *SHARDS))


async def test_a_shard_whose_learner_is_in_is_needed_no_more(
    make_run: Callable[..., RunRecord], blobs: BlobStore
) -> None:
    for content in (THETA, *SHARDS[:2]):
        blobs.put_bytes(content)
    run = make_run()
    run = run.with_learner(run.learners[2].changed(state=LearnerState.DONE))
    assert await made_again(run, blobs) == []


async def test_inputs_that_come_out_otherwise_are_named(
    make_run: Callable[..., RunRecord], blobs: BlobStore
) -> None:
    with pytest.raises(CorruptBlobError, match=rf"1 inputs .*{BlobName.of(THETA).sha256[:12]}"):
        await made_again(make_run(), blobs, theta=b"another theta*")


async def test_a_run_that_has_nothing_yet_has_nothing_to_restore(
    make_run: Callable[..., RunRecord], blobs: BlobStore
) -> None:
    run = make_run().changed(initial_weights=None, learners=())
    assert await made_again(run, blobs) == []
