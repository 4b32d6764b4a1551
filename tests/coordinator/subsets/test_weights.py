from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import CorruptBlobError, OtherDataError, RunNotReadyError, UnknownRunError
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.compute.jobs.pretraining import InitializeWeights, MakeSoup, SoupResult
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord, SoupRecord
from lipt.coordinator.subsets.ready_runs import RunWeights
from tests.coordinator.fakes import FakeCompute, Hanging

MakeRun = Callable[..., RunRecord]
THETA, THETA_P = b"theta*", b"theta_p"
SOUP = SoupRecord(
    initial_accuracy=0.1,
    mean_learner_accuracy=0.4,
    best_learner_accuracy=0.5,
    soup_accuracy=0.5,
    num_kept=1,
    num_validation_examples=10,
)


@dataclass
class World:
    """A run "r" that is ready, and a younger one, "young", that has theta* alone."""

    weights: RunWeights
    store: RunStore
    blobs: BlobStore
    compute: FakeCompute

    def damage(self, content: bytes, *, lose: bool = False) -> None:
        path = self.blobs.path(BlobName.of(content))
        path.unlink() if lose else path.write_bytes(content.swapcase())


@pytest.fixture
async def world(tmp_path: Path, database: Database, make_run: MakeRun) -> AsyncIterator[World]:
    blobs = BlobStore(tmp_path, max_blob_bytes=1000)
    store = RunStore(database)
    blobs.put_bytes(THETA)
    ready = make_run(num_learners=1, state=RunState.READY)
    done = ready.learners[0].changed(state=LearnerState.DONE, result=BlobName.of(b"learner"))
    await store.add(ready.with_learner(done).changed(pretrained_weights=blobs.put_bytes(THETA_P)))
    await store.add(make_run("young"))
    compute = FakeCompute(
        {
            InitializeWeights: lambda _: blobs.put_bytes(THETA),
            MakeSoup: lambda _: SoupResult(blobs.put_bytes(THETA_P), SOUP, {}),
        }
    )
    weights = RunWeights(store, blobs, compute.queue, linger_seconds=60.0)
    yield World(weights, store, blobs, compute)
    await weights.stop()


async def test_whole_weights_are_named_at_once(world: World) -> None:
    assert await world.weights.initial("r", "caller") == BlobName.of(THETA)
    assert await world.weights.pretrained("name-r", "caller") == BlobName.of(THETA_P)
    assert world.compute.kinds == []


@pytest.mark.parametrize("lose", [False, True])
async def test_weights_that_the_disk_has_damaged_or_lost_are_made_again_first(
    world: World, lose: bool
) -> None:
    world.damage(THETA_P, lose=lose)
    assert world.blobs.is_whole(await world.weights.pretrained("r", "caller"))
    world.damage(THETA, lose=lose)
    assert world.blobs.is_whole(await world.weights.initial("young", "caller"))
    assert world.compute.kinds == ["MakeSoup", "InitializeWeights"]
    assert world.compute.fingerprints == ["f" * 64] * 2


async def test_theta_p_is_made_again_of_a_theta_star_that_is_made_again(world: World) -> None:
    for content in (THETA, THETA_P):
        world.damage(content)
    await world.weights.pretrained("r", "caller")
    assert world.compute.kinds == ["InitializeWeights", "MakeSoup"]


async def test_weights_are_made_again_once_for_all_who_ask(world: World) -> None:
    world.damage(THETA_P)
    names = await asyncio.gather(*(world.weights.pretrained("r", "caller") for _ in range(3)))
    assert names == [BlobName.of(THETA_P)] * 3
    assert world.compute.kinds == ["MakeSoup"]


async def test_weights_are_made_again_also_when_who_asked_has_left(world: World) -> None:
    world.damage(THETA_P)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def merge(job: MakeSoup) -> SoupResult:
        begun.set()
        await go_on.wait()
        return SoupResult(world.blobs.put_bytes(THETA_P), SOUP, {})

    world.compute.answers[MakeSoup] = merge
    impatient = asyncio.create_task(world.weights.pretrained("r", "caller"))
    await begun.wait()
    impatient.cancel()
    patient = asyncio.create_task(world.weights.pretrained("r", "caller"))
    go_on.set()
    assert world.blobs.is_whole(await patient)
    assert world.compute.kinds == ["MakeSoup"]


async def test_weights_that_come_out_otherwise_are_said_to_be_lost(world: World) -> None:
    world.damage(THETA_P)
    other = SoupResult(world.blobs.put_bytes(b"other"), SOUP, {})
    world.compute.answers[MakeSoup] = other
    with pytest.raises(CorruptBlobError, match="Start the run again"):
        await world.weights.pretrained("r", "caller")


async def test_weights_that_are_not_there_yet_are_refused_with_how_far_the_run_is(
    world: World,
) -> None:
    with pytest.raises(RunNotReadyError, match="run name-young is training"):
        await world.weights.pretrained("young", "caller")
    with pytest.raises(UnknownRunError):
        await world.weights.initial("nobody", "caller")


async def test_weights_of_a_run_that_is_held_are_served_and_not_made_again(world: World) -> None:
    for run_id in ("r", "young"):
        world.store.hold(run_id, "run was made on other data.")
    assert await world.weights.pretrained("r", "caller") == BlobName.of(THETA_P)
    world.damage(THETA_P)
    with pytest.raises(OtherDataError, match=r"theta_p of run name-r.*made on other data"):
        await world.weights.pretrained("r", "caller")
    with pytest.raises(OtherDataError, match="made on other data"):
        await world.weights.pretrained("young", "caller")
    assert world.compute.kinds == []


async def test_what_is_being_made_again_is_given_up_at_the_end(world: World) -> None:
    world.damage(THETA_P)
    world.compute.answers[MakeSoup] = hanging = Hanging()
    asking = asyncio.create_task(world.weights.pretrained("r", "caller"))
    await hanging.begun.wait()
    await world.weights.stop()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert hanging.given_up


async def test_the_latest_weights_are_those_of_the_newest_run_that_is_ready(world: World) -> None:
    assert await world.weights.pretrained("latest", "me") == BlobName.of(THETA_P)
    assert await world.weights.initial("latest", "me") == BlobName.of(THETA)
