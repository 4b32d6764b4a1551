from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import pytest

from lipt.common.errors import UnknownRunError
from lipt.common.states import RunState
from lipt.coordinator.runs.store import Activity, LearnerProgress, RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord, RunSummary

MakeRun = Callable[..., RunRecord]


@pytest.fixture
async def store(database: Database, make_run: MakeRun) -> RunStore:
    """A store with a run "r"."""
    store = RunStore(database)
    await store.add(make_run())
    return store


async def test_change_is_durable_before_it_is_seen(store: RunStore, database: Database) -> None:
    await store.update("r", lambda run: run.changed(message="hello"))
    other = RunStore(database)
    await other.load()
    assert other.find("r") == store.find("r")
    assert store.find("r").message == "hello"


async def test_change_that_raises_leaves_the_run_as_it_was(
    store: RunStore, make_run: MakeRun
) -> None:
    revision = store.revision("r")

    def refuse(run: RunRecord) -> RunRecord:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - the test's own
        await store.update("r", refuse)
    assert (store.find("r"), store.revision("r")) == (make_run(), revision)


async def test_concurrent_changes_follow_each_other(store: RunStore) -> None:
    await asyncio.gather(
        *(store.update("r", lambda run: run.changed(message=run.message + "x")) for _ in range(20))
    )
    assert store.find("r").message == "x" * 20


async def test_run_is_found_by_id_by_name_and_as_the_latest(
    database: Database, make_run: MakeRun
) -> None:
    store = RunStore(database)
    with pytest.raises(UnknownRunError, match="lipt run start"):
        store.find("latest")
    await store.add(make_run("a"))
    await store.add(make_run("b"))
    assert store.find("name-a") == store.find("a")
    assert store.find("latest").run_id == "b"
    with pytest.raises(UnknownRunError, match="name-b, name-a"):
        store.find("c")


async def test_watcher_is_woken_by_a_change_and_sees_a_higher_revision(store: RunStore) -> None:
    seen = store.revision("r")
    waiting = asyncio.create_task(store.wait_for_change("r", seen, timeout_seconds=30.0))
    await asyncio.sleep(0)
    store.set_activity("r", Activity("merging", 1, 2))
    assert await waiting > seen


async def test_watcher_without_a_change_gets_the_same_revision(store: RunStore) -> None:
    seen = store.revision("r")
    assert await store.wait_for_change("r", seen, timeout_seconds=0.01) == seen


async def test_record_refuses_a_misspelt_field(make_run: MakeRun) -> None:
    with pytest.raises(TypeError, match="mesage"):
        make_run().changed(mesage="hello")


async def test_revisions_go_on_above_those_of_an_earlier_process(
    database: Database, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lipt.coordinator.runs.store.time", lambda: 1000.0)
    store = RunStore(database)
    await store.add(make_run())
    store.set_activity("r", Activity("merging"))
    monkeypatch.setattr("lipt.coordinator.runs.store.time", lambda: 1001.0)
    later = RunStore(database)
    await later.load()
    assert (store.revision("r"), later.revision("r")) == (1_000_002, 1_001_000)


async def test_change_of_a_run_that_is_not_there_names_those_that_are(store: RunStore) -> None:
    with pytest.raises(UnknownRunError, match="no run 'x'; the newest are: name-r"):
        await store.update("x", lambda run: run)


async def test_run_that_is_held_is_shown_so_and_stored_as_it_was(
    store: RunStore, database: Database, make_run: MakeRun
) -> None:
    revision = store.revision("r")
    store.hold("r", "other data.")
    assert store.held("r") == "other data."
    assert store.shown_state(store.find("r")) is RunState.HELD
    assert store.revision("r") > revision
    assert await database.load_runs() == (make_run(),)
    store.release("r")
    assert store.shown_state(store.find("r")) is RunState.TRAINING


async def test_run_that_has_ended_is_shown_as_it_has(store: RunStore) -> None:
    await store.update("r", lambda run: run.changed(state=RunState.READY))
    store.hold("r", "other data.")
    assert store.shown_state(store.find("r")) is RunState.READY


async def test_to_release_a_run_that_goes_on_changes_nothing(store: RunStore) -> None:
    revision = store.revision("r")
    store.release("r")
    assert store.revision("r") == revision


class Reads:
    """Counts the records that a database reads, one by one and at the start."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded: list[str] = []
        self.read: list[str] = []
        load, read = database.load_runs, database.read_run

        async def noted_load(ids: Collection[str] | None = None) -> tuple[RunRecord, ...]:
            runs = await load(ids)
            self.loaded += [run.run_id for run in runs]
            return runs

        def noted_read(run_id: str) -> RunRecord | None:
            self.read.append(run_id)
            return read(run_id)

        monkeypatch.setattr(database, "load_runs", noted_load)
        monkeypatch.setattr(database, "read_run", noted_read)


async def test_of_ended_runs_no_record_is_read_before_it_is_asked_for(
    database: Database, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = [make_run(f"e{it}", state=RunState.READY).changed(created_at=it) for it in range(20)]
    for run in (*ended, make_run("t").changed(created_at=30.0)):
        await database.save_run(run, run.learners)
    reads = Reads(database, monkeypatch)
    store = RunStore(database)
    await store.load()
    assert [run.run_id for run in store.runs()] == [f"e{it}" for it in range(20)] + ["t"]
    assert [run.run_id for run in store.live()] == ["t"]
    assert (reads.loaded, reads.read) == (["t"], [])
    assert (store.find("name-e7"), store.find("e7")) == (ended[7], ended[7])
    assert store.find_request(ended[8].request_id) == ended[8]
    assert store.find_request("of nobody") is None
    assert reads.read == ["e7", "e8"]


async def test_run_that_ends_is_summed_up_and_is_found_as_before(
    store: RunStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(database, monkeypatch)
    assert [run.run_id for run in store.live()] == ["r"]
    watched, turned = (
        asyncio.create_task(wait("r", store.revision("r"), timeout_seconds=30.0))
        for wait in (store.wait_for_change, store.wait_for_turn)
    )
    await asyncio.sleep(0)
    ended = await store.update("r", lambda run: run.changed(state=RunState.READY, ended_at=5.0))
    await asyncio.gather(watched, turned)
    assert store.live() == ()
    assert store.runs() == (RunSummary.of(ended),)
    assert (store.find("r"), store.record("r")) == (ended, ended)
    # Its end was kept for those who ask at once.
    assert reads.read == []
    store.set_activity("r", Activity("late"))
    store.set_progress("r", 0, LearnerProgress(step=3))
    assert store.activity("r") == Activity()
    assert store.progress("r", 0) == LearnerProgress()
    seen = store.revision("r")
    assert await store.wait_for_change("r", seen, timeout_seconds=0.01) == seen


async def test_end_whose_caller_has_left_is_summed_up_as_well(store: RunStore) -> None:
    ending = asyncio.create_task(
        store.update("r", lambda run: run.changed(state=RunState.CANCELLED))
    )
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    await store.wait_for_turn("r", store.revision("r"), timeout_seconds=30.0)
    await asyncio.sleep(0)
    assert store._live == {}
    assert store.find("r").state is RunState.CANCELLED


async def test_ended_run_can_be_changed_and_its_change_is_durable(
    database: Database, make_run: MakeRun
) -> None:
    run = make_run("e", state=RunState.READY)
    await database.save_run(run, run.learners)
    store = RunStore(database)
    await store.load()
    revision = store.revision("e")
    same = await store.update("e", lambda run: run)
    assert (same, store.revision("e"), store._live) == (run, revision, {})
    await asyncio.gather(
        *(store.update("e", lambda run: run.changed(message=run.message + "x")) for _ in range(3))
    )
    assert store.find("e").message == "xxx"
    assert store.revision("e") > revision
    assert store._live == {}
    assert await database.load_runs() == (store.find("e"),)


async def test_run_that_is_removed_meanwhile_is_unknown(
    database: Database, make_run: MakeRun
) -> None:
    run = make_run("e", state=RunState.READY)
    await database.save_run(run, run.learners)
    store = RunStore(database)
    await store.load()
    await database.remove_run("e")
    with pytest.raises(UnknownRunError, match="no run 'e'"):
        store.record("e")
    await store.remove("e")
    assert store.runs() == ()
