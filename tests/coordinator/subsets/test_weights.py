from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.errors import (
    DataError,
    OtherDataError,
    RunNotReadyError,
    UnknownRunError,
)
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.compute.jobs.pretraining import InitializeWeights, MakeSoup, SoupResult
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.subsets.answers import Answers, find_ready
from lipt.core.results import CommittedLearner
from tests.coordinator.fakes import DATA, SOUP_RECORD, FakeCompute
from tests.coordinator.made_up_runs import made_up_run
from tests.coordinator.subsets.conftest import MakeAnswers

THETA, THETA_P = b"theta*", b"theta_p"


@dataclass
class World:
    """A run "r" that is ready, and a younger one, "young", that has theta* alone."""

    answers: Answers
    store: RunStore
    blobs: BlobStore
    compute: FakeCompute

    def damage(self, content: bytes, *, lose: bool = False) -> None:
        path = self.blobs.path(BlobName.of(content))
        path.unlink() if lose else path.write_bytes(content.swapcase())


@pytest.fixture
async def world(database: Database, blobs: BlobStore, make_answers: MakeAnswers) -> World:
    store = RunStore(database)
    blobs.put_bytes(THETA)
    ready = made_up_run(num_learners=1, state=RunState.READY)
    done = ready.learners[0].changed(state=LearnerState.DONE, result=BlobName.of(b"learner"))
    await store.add(ready.with_learner(done).changed(pretrained_weights=blobs.put_bytes(THETA_P)))
    await store.add(made_up_run("young"))
    compute = FakeCompute(
        {
            InitializeWeights: lambda _: blobs.put_bytes(THETA),
            MakeSoup: lambda _: SoupResult(blobs.put_bytes(THETA_P), SOUP_RECORD, {}),
        }
    )
    return World(make_answers(store, compute), store, blobs, compute)


@pytest.mark.parametrize("lose", [False, True])
async def test_weights_that_the_disk_has_damaged_or_lost_are_made_again_first(
    world: World, lose: bool
) -> None:
    world.damage(THETA_P, lose=lose)
    assert world.blobs.is_whole(await world.answers.weights("r", "theta_p", "caller"))
    world.damage(THETA, lose=lose)
    assert world.blobs.is_whole(await world.answers.weights("young", "theta*", "caller"))
    assert world.compute.kinds == ["MakeSoup", "InitializeWeights"]
    assert world.compute.fingerprints == ["f" * 64] * 2


async def test_weights_are_made_again_also_when_who_asked_has_left(world: World) -> None:
    world.damage(THETA_P)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def merge(job: MakeSoup) -> SoupResult:
        begun.set()
        await go_on.wait()
        return SoupResult(world.blobs.put_bytes(THETA_P), SOUP_RECORD, {})

    world.compute.answers[MakeSoup] = merge
    impatient = asyncio.create_task(world.answers.weights("r", "theta_p", "caller"))
    await begun.wait()
    impatient.cancel()
    patient = asyncio.create_task(world.answers.weights("r", "theta_p", "caller"))
    go_on.set()
    assert world.blobs.is_whole(await patient)
    assert world.compute.kinds == ["MakeSoup"]


async def test_weights_that_are_not_there_yet_are_refused_with_how_far_the_run_is(
    world: World,
) -> None:
    with pytest.raises(RunNotReadyError, match="run name-young is training"):
        await world.answers.weights("young", "theta_p", "caller")
    with pytest.raises(UnknownRunError):
        await world.answers.weights("nobody", "theta*", "caller")


async def test_weights_of_a_run_that_is_held_are_served_and_not_made_again(world: World) -> None:
    for run_id in ("r", "young"):
        world.store.hold(run_id, "run was made on other data.")
    assert await world.answers.weights("r", "theta_p", "caller") == BlobName.of(THETA_P)
    world.damage(THETA_P)
    with pytest.raises(OtherDataError, match=r"theta_p of run name-r.*made on other data"):
        await world.answers.weights("r", "theta_p", "caller")
    with pytest.raises(OtherDataError, match="made on other data"):
        await world.answers.weights("young", "theta_p", "caller")
    assert world.compute.kinds == []


async def test_the_latest_weights_are_those_of_the_newest_run_that_is_ready(world: World) -> None:
    assert await world.answers.weights("latest", "theta_p", "me") == BlobName.of(THETA_P)
    assert await world.answers.weights("latest", "theta*", "me") == BlobName.of(THETA)


@pytest.fixture
async def store(database: Database) -> RunStore:
    """A store with a run "r" that is ready, and a younger one, "young", that is not."""
    store = RunStore(database)
    for run in (made_up_run(state=RunState.READY), made_up_run("young")):
        await store.add(run.changed(fingerprint=DATA.fingerprint))
    return store


@pytest.mark.parametrize("name", ["r", "name-r"])
async def test_a_ready_run_is_found_by_its_id_and_by_its_name(store: RunStore, name: str) -> None:
    assert find_ready(store, name, DATA).run_id == "r"


async def test_the_latest_is_the_newest_that_is_ready(store: RunStore) -> None:
    assert find_ready(store, "latest", DATA).run_id == "r"
    for run_id, state in (("ready", RunState.READY), ("gone", RunState.CANCELLED)):
        await store.add(made_up_run(run_id, state=state).changed(fingerprint=DATA.fingerprint))
    assert find_ready(store, "latest", DATA).run_id == "ready"


async def test_the_latest_ready_run_of_other_data_does_not_shadow_one_of_the_served(
    store: RunStore,
) -> None:
    await store.add(made_up_run("other", state=RunState.READY).changed(fingerprint="e" * 64))
    store.hold("other", "its data is not served")
    assert find_ready(store, "latest", DATA).run_id == "r"


async def test_the_newest_run_counts_where_none_is_ready(database: Database) -> None:
    store = RunStore(database)
    with pytest.raises(UnknownRunError, match="'latest'"):
        find_ready(store, "latest", DATA)
    for run_id in ("old", "young"):
        await store.add(made_up_run(run_id).changed(fingerprint=DATA.fingerprint))
    with pytest.raises(RunNotReadyError, match="run name-young is training"):
        find_ready(store, "latest", DATA)


async def test_what_else_helps_against_other_data_ends_the_sentence(store: RunStore) -> None:
    other = replace(DATA, fingerprint="e" * 64)
    with pytest.raises(DataError, match=r"own data, or leave the run out\.$"):
        find_ready(store, "r", other, or_else=", or leave the run out")


def test_trajectories_begin_at_theta_star_and_end_in_the_learners_that_are_in() -> None:
    run = made_up_run(num_learners=3, state=RunState.READY)
    snapshot, result = BlobName.of(b"snapshot"), BlobName.of(b"result")
    for index in (2, 0):
        done = {"state": LearnerState.DONE, "snapshots": (snapshot,), "result": result}
        run = run.with_learner(run.learners[index].changed(**done))
    trajectories = run.outcome.trajectories
    assert trajectories.initial_weights == BlobName.of(b"theta*")
    assert trajectories.learners == tuple(
        CommittedLearner(index, (snapshot,), result) for index in (0, 2)
    )
