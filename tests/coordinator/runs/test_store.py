import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import StateError, UnknownRunError, UnreadableRunError
from lipt.common.states import RunState
from lipt.coordinator.compute.messages import Progressed
from lipt.coordinator.runs.store import Change, LearnerProgress, LiveRun, RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import LearnerRecord, RunRecord, RunSummary
from tests.coordinator.made_up_runs import made_up_run
from tests.coordinator.state.conftest import execute, stored_runs
from tests.properties import at_most


@pytest.fixture
async def store(database: Database) -> RunStore:
    store = RunStore(database)
    await store.add(made_up_run())
    return store


async def test_a_change_is_durable_before_it_is_visible(
    store: RunStore, database: Database
) -> None:
    await store.update("r", lambda run: run.changed(message="hello"))
    other = RunStore(database)
    await other.load()
    assert other.find("r") == store.find("r")
    assert store.find("r").message == "hello"


async def test_run_is_found_by_id_by_name_and_as_the_latest(database: Database) -> None:
    store = RunStore(database)
    with pytest.raises(UnknownRunError, match="lipt run start"):
        store.find("latest")
    await store.add(made_up_run("a"))
    await store.add(made_up_run("b"))
    assert store.find("name-a") == store.find("a")
    assert store.find("latest").run_id == "b"
    with pytest.raises(UnknownRunError, match="name-b, name-a"):
        store.find("c")


async def test_revisions_increase_across_restarts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lipt.coordinator.runs.store.time", lambda: 1000.0)
    store = RunStore(database)
    await store.add(made_up_run())
    store.set_activity("r", Progressed("merging"))
    monkeypatch.setattr("lipt.coordinator.runs.store.time", lambda: 1001.0)
    later = RunStore(database)
    await later.load()
    assert (store.revision("r"), later.revision("r")) == (1_000_002, 1_001_000)


async def test_a_held_run_is_shown_as_held_and_stored_unchanged(
    store: RunStore, database: Database
) -> None:
    revision = store.revision("r")
    store.hold("r", "other data.")
    assert store.held("r") == "other data."
    assert store.shown_state(store.find("r")) is RunState.HELD
    assert store.revision("r") > revision
    assert await stored_runs(database) == (made_up_run(),)
    store.release("r")
    assert store.shown_state(store.find("r")) is RunState.TRAINING


async def test_records_of_ended_runs_are_read_on_demand(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = [made_up_run(f"e{it}", state=RunState.READY).changed(created_at=it) for it in range(20)]
    for run in (*ended, made_up_run("t").changed(created_at=30.0)):
        await database.save_run(run, run.learners)
    reads, read = list[str](), database.read_run
    monkeypatch.setattr(database, "read_run", lambda run: (reads.append(run), read(run))[1])
    store = RunStore(database)
    await store.load()
    assert [run.run_id for run in store.runs()] == [f"e{it}" for it in range(20)] + ["t"]
    assert [run.run_id for run in store.live()] == ["t"]
    assert reads == ["t"]
    assert (store.find("name-e7"), store.find("e7")) == (ended[7], ended[7])
    assert store.find_request(ended[8].request_id) == ended[8]
    assert store.find_request("unknown") is None
    assert reads == ["t", "e7", "e7", "e8"]


async def test_an_ended_run_is_summarized_and_still_found(store: RunStore) -> None:
    assert [run.run_id for run in store.live()] == ["r"]
    watched, turned = (
        asyncio.create_task(wait("r", store.revision("r"), timeout_seconds=30.0))
        for wait in (store.wait_for_change, store.wait_for_update)
    )
    await asyncio.sleep(0)
    weights = BlobName.of(b"theta_p")
    ready = {"state": RunState.READY, "ended_at": 5.0, "pretrained_weights": weights}
    ended = await store.update("r", lambda run: run.changed(**ready))
    await asyncio.gather(watched, turned)
    assert store.live() == ()
    assert store.runs() == (RunSummary.of(ended),)
    assert (store.find("r"), store.record("r")) == (ended, ended)
    store.set_activity("r", Progressed("late"))
    store.set_progress("r", 0, LearnerProgress(step=3))
    assert store.activity("r") == Progressed()
    assert store.progress("r", 0) == LearnerProgress()
    seen = store.revision("r")
    assert await store.wait_for_change("r", seen, timeout_seconds=0.01) == seen


async def test_an_ended_run_is_summarized_although_its_caller_left(store: RunStore) -> None:
    ending = asyncio.create_task(
        store.update("r", lambda run: run.changed(state=RunState.CANCELLED))
    )
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    await store.wait_for_update("r", store.revision("r"), timeout_seconds=30.0)
    await asyncio.sleep(0)
    assert store._live == {}
    assert store.find("r").state is RunState.CANCELLED


async def test_ended_run_can_be_changed_and_its_change_is_durable(database: Database) -> None:
    run = made_up_run("e", state=RunState.READY)
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
    assert await stored_runs(database) == (store.find("e"),)


async def test_a_run_removed_meanwhile_is_unknown(database: Database) -> None:
    run = made_up_run("e", state=RunState.READY)
    await database.save_run(run, run.learners)
    store = RunStore(database)
    await store.load()
    await database.remove_run("e")
    with pytest.raises(UnknownRunError, match="no run 'e'"):
        store.record("e")
    await store.remove("e")
    assert store.runs() == ()


class Disk:
    """Takes records one at a time, when the test lets it, or refuses them."""

    def __init__(self, run: RunRecord) -> None:
        self.written: list[RunRecord] = []
        self.learners: list[list[int]] = []
        self.told: list[str] = []
        self.refuses = False
        self._turns = asyncio.Semaphore(0)
        self.record = LiveRun(run, cast("Any", self), self.on_durable)

    async def save_run(self, run: RunRecord, learners: Sequence[LearnerRecord]) -> None:
        await self._turns.acquire()
        if self.refuses:
            raise StateError("the disk is full.")
        self.written.append(run)
        self.learners.append([learner.index for learner in learners])

    def on_durable(self, run: RunRecord, learners: Sequence[LearnerRecord]) -> None:
        assert run == self.written[-1] == self.record.shown
        self.told.append(run.message)

    async def turn(self, *, refuses: bool = False) -> None:
        """Take, or refuse, the next record, and let everybody hear of it."""
        self.refuses = refuses
        self._turns.release()
        await settle()

    def ask(self, change: Change) -> asyncio.Task[RunRecord]:
        return asyncio.create_task(self.record.update(change))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def saying(word: str) -> Change:
    return lambda run: run.changed(message=run.message + word)


@pytest.fixture
async def disk() -> Disk:
    return Disk(made_up_run())


async def test_changes_during_a_write_are_written_together(disk: Disk) -> None:
    first = disk.ask(saying("a"))
    await settle()
    others = [disk.ask(saying(word)) for word in "bcd"]
    await settle()
    assert disk.record.shown.message == ""  # nothing is durable yet
    await disk.turn()
    assert (await first).message == "a"
    assert disk.record.shown.message == "a"
    assert not any(task.done() for task in others)
    await disk.turn()
    # Each is given the run as its own change left it.
    assert [task.result().message for task in others] == ["ab", "abc", "abcd"]
    assert disk.told == ["a", "abcd"]


async def test_only_learners_that_changed_are_written(disk: Disk) -> None:
    def change(run: RunRecord) -> RunRecord:
        learner = run.learners[1]
        equal = run.learners[2].changed()
        return run.with_learner(learner.changed(message="x")).with_learner(equal)

    disk.ask(change)
    await disk.turn()
    disk.ask(lambda run: run.changed(learners=(*run.learners, run.learners[0].changed(index=3))))
    await disk.turn()
    assert disk.learners == [[1], [3]]


async def test_a_failing_listener_does_not_block_others(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk, "told", None)
    tasks = [disk.ask(saying("a"))]
    await settle()
    tasks.append(disk.ask(saying("b")))
    await disk.turn()
    await disk.turn()
    assert [task.result().message for task in tasks] == ["a", "ab"]
    assert "a listener to changes of run r has failed" in caplog.text


# What happens, one after the other: a caller asks for a change that appends its number, or that is
# refused or changes nothing; a caller leaves; the disk takes a record, or refuses it.
ASK, REFUSED, NOTHING, LEAVE, TAKEN, FULL = range(6)


@settings(max_examples=at_most(60))
@given(st.lists(st.integers(ASK, FULL), max_size=30))
def test_grouped_writes_show_the_same_as_single_writes(events: list[int]) -> None:
    asyncio.run(compare(events))


async def compare(events: list[int]) -> None:  # noqa: C901 - a script of six kinds of events
    """Against lists: of the changes that are durable, on their way, and not yet."""
    start = RunRecord.model_construct(run_id="r", message="", learners=())
    disk = Disk(start)
    durable, under_way, waiting = list[str](), list[str](), list[str]()
    asked: list[tuple[str, int, asyncio.Task[RunRecord]]] = []
    fallen: set[str] = set()

    def refuse(run: RunRecord) -> RunRecord:
        raise ValueError(run.message)

    for number, event in enumerate([*events, TAKEN, TAKEN]):
        word = f"{number};"
        if event in (ASK, REFUSED, NOTHING):
            change = (saying(word), refuse, lambda run: run)[event]
            asked.append((word, event, disk.ask(change)))
            if event == ASK:
                waiting.append(word)
            await settle()
        elif event == LEAVE and asked:
            asked.pop()[2].cancel()
            await settle()
        elif event in (TAKEN, FULL) and under_way:
            await disk.turn(refuses=event == FULL)
            if event == TAKEN:
                durable += under_way
            else:
                fallen |= {*under_way, *waiting}
                waiting = []
            under_way = []
        if not under_way:
            under_way, waiting = waiting, []
        assert disk.record.shown.message == "".join(durable)
        for word, kind, task in asked:
            # Answered as soon as it is durable or has fallen, and not before.
            assert kind != ASK or task.done() == (word in durable or word in fallen)
            if task.done():
                require_durable(kind, task, "".join(durable))
    assert len(disk.written) <= len(durable)
    await asyncio.gather(*(task for *_, task in asked), return_exceptions=True)


def require_durable(kind: int, task: asyncio.Task[RunRecord], durable: str) -> None:
    """No answer rests on what may yet be lost; that of the disk itself on nothing."""
    error = task.exception()
    if not isinstance(error, StateError):
        said = str(error) if kind == REFUSED else task.result().message
        assert durable.startswith(said)


async def test_unreadable_runs_are_shown_and_refused_while_others_go_on(
    database: Database, tmp_path: Path
) -> None:
    ready = made_up_run("ready", state=RunState.READY)
    for run in (made_up_run("a"), made_up_run("b"), ready):
        await database.save_run(run, run.learners)
    execute(tmp_path / "lipt.db", "UPDATE learners SET body = '{' WHERE run_id = 'a'")
    store = RunStore(database)
    await store.load()
    assert [run.run_id for run in store.live()] == ["b"]
    # A record of an ended run is read later.
    execute(tmp_path / "lipt.db", "UPDATE runs SET body = '{}' WHERE run_id = 'ready'")
    revision = store.revision("ready")
    for run_id in ("a", "name-a", "ready"):
        with pytest.raises(UnreadableRunError, match="cannot be read"):
            store.find(run_id)
    assert store.revision("ready") > revision
    shown = {run.run_id: run.state for run in store.runs()}
    unreadable = RunState.UNREADABLE
    assert shown == {"a": unreadable, "b": RunState.TRAINING, "ready": unreadable}
    assert store.find("latest").run_id == "b"
    with pytest.raises(UnreadableRunError):
        await store.update("a", lambda run: run.changed(message="x"))
    with pytest.raises(UnreadableRunError):
        await store.remove("a")
    with pytest.raises(UnreadableRunError):
        store.find_request("request-a")
    changed = await store.update("b", lambda run: run.changed(message="x"))
    assert database.read_run("b") == changed
