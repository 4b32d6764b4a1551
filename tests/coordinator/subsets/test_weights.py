from __future__ import annotations

import asyncio

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import DataError, OtherDataError, RunNotReadyError, UnknownRunError
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.compute.jobs.pretraining import MakeSoup, SoupResult
from lipt.coordinator.runs.holding import find_ready
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.core.results import CommittedLearner
from tests.coordinator.fakes import DATA, SOUP_RECORD
from tests.coordinator.made_up_runs import made_up_run
from tests.coordinator.subsets.conftest import THETA, THETA_P, World


@pytest.mark.parametrize("lose", [False, True])
async def test_weights_that_are_damaged_or_lost_are_made_again(world: World, lose: bool) -> None:
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


async def test_weights_that_are_not_there_yet_are_refused(world: World) -> None:
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


async def test_a_ready_run_is_found_by_id_by_name_and_as_the_latest(database: Database) -> None:
    store = RunStore(database)
    with pytest.raises(UnknownRunError, match="'latest'"):
        find_ready(store, "latest", DATA)
    await store.add(made_up_run("young"))
    # The newest counts where none is ready.
    with pytest.raises(RunNotReadyError, match="run name-young is training"):
        find_ready(store, "latest", DATA)
    for run_id, state in (("r", RunState.READY), ("gone", RunState.CANCELLED)):
        await store.add(made_up_run(run_id, state=state))
    # A newer one of other data does not shadow it.
    await store.add(made_up_run("other", state=RunState.READY).changed(fingerprint="e" * 64))
    store.hold("other", "its data is not served")
    assert {find_ready(store, name, DATA).run_id for name in ("r", "name-r", "latest")} == {"r"}
    await store.add(made_up_run("newer", state=RunState.READY))
    assert find_ready(store, "latest", DATA).run_id == "newer"
    with pytest.raises(DataError, match=r"own data, or leave the run out\.$"):
        find_ready(store, "other", DATA, or_else=", or leave the run out")


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
