from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import DataError, RunNotReadyError, UnknownRunError
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.runs.store import Activity, RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord
from lipt.coordinator.subsets.ready_runs import find_ready
from lipt.core.results import CommittedLearner
from tests.coordinator.fakes import DATA

MakeRun = Callable[..., RunRecord]


@pytest.fixture
async def store(database: Database, make_run: MakeRun) -> RunStore:
    """A store with a run "r" that is ready, and a younger one, "young", that is not."""
    store = RunStore(database)
    for run in (make_run(state=RunState.READY), make_run("young")):
        await store.add(run.changed(fingerprint=DATA.fingerprint))
    return store


@pytest.mark.parametrize("name", ["r", "name-r"])
async def test_a_ready_run_is_found_by_its_id_and_by_its_name(store: RunStore, name: str) -> None:
    assert find_ready(store, name, DATA).run_id == "r"


async def test_the_latest_is_the_newest_that_is_ready(store: RunStore, make_run: MakeRun) -> None:
    assert find_ready(store, "latest", DATA).run_id == "r"
    for run_id, state in (("ready", RunState.READY), ("gone", RunState.CANCELLED)):
        await store.add(make_run(run_id, state=state).changed(fingerprint=DATA.fingerprint))
    assert find_ready(store, "latest", DATA).run_id == "ready"


async def test_the_latest_ready_run_of_other_data_does_not_shadow_one_of_the_served(
    store: RunStore, make_run: MakeRun
) -> None:
    await store.add(make_run("other", state=RunState.READY).changed(fingerprint="e" * 64))
    store.hold("other", "its data is not served")
    assert find_ready(store, "latest", DATA).run_id == "r"


async def test_the_newest_run_counts_where_none_is_ready(
    database: Database, make_run: MakeRun
) -> None:
    store = RunStore(database)
    with pytest.raises(UnknownRunError, match="'latest'"):
        find_ready(store, "latest", DATA)
    for run_id in ("old", "young"):
        await store.add(make_run(run_id).changed(fingerprint=DATA.fingerprint))
    with pytest.raises(RunNotReadyError, match="run name-young is training"):
        find_ready(store, "latest", DATA)


async def test_a_run_that_is_not_ready_says_how_far_it_is(store: RunStore) -> None:
    store.set_activity("young", Activity("fetching a result", 1, 3))
    with pytest.raises(RunNotReadyError, match="0 of 3 learners are in; fetching a result, 1 of 3"):
        find_ready(store, "young", DATA)


async def test_a_run_that_is_not_there_is_unknown(store: RunStore) -> None:
    with pytest.raises(UnknownRunError, match="'nobody'"):
        find_ready(store, "nobody", DATA)


async def test_a_run_of_other_data_is_refused_with_both_fingerprints(store: RunStore) -> None:
    other = replace(DATA, source="other", fingerprint="e" * 64)
    with pytest.raises(DataError) as refused:
        find_ready(store, "r", other)
    assert str(refused.value) == (
        f"run name-r was made on data with fingerprint {'f' * 64}, this coordinator now serves "
        f"other with {'e' * 64}. Start the coordinator with the run's own data."
    )


async def test_what_else_helps_against_other_data_ends_the_sentence(store: RunStore) -> None:
    other = replace(DATA, fingerprint="e" * 64)
    with pytest.raises(DataError, match=r"own data, or leave the run out\.$"):
        find_ready(store, "r", other, or_else=", or leave the run out")


def test_trajectories_begin_at_theta_star_and_end_in_the_learners_that_are_in(
    make_run: MakeRun,
) -> None:
    run = make_run(num_learners=3, state=RunState.READY)
    snapshot, result = BlobName.of(b"snapshot"), BlobName.of(b"result")
    for index in (2, 0):
        done = {"state": LearnerState.DONE, "snapshots": (snapshot,), "result": result}
        run = run.with_learner(run.learners[index].changed(**done))
    trajectories = run.outcome.trajectories
    assert trajectories.initial_weights == BlobName.of(b"theta*")
    assert trajectories.learners == tuple(
        CommittedLearner(index, (snapshot,), result) for index in (0, 2)
    )


def test_no_trajectories_begin_at_nothing(make_run: MakeRun) -> None:
    run = make_run(state=RunState.READY).changed(initial_weights=None)
    with pytest.raises(ValueError, match=r"run name-r has no theta\* yet"):
        _ = run.outcome.trajectories
