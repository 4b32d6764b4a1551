import asyncio
import os
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import RunNotReadyError, StateError
from lipt.common.observability.logs import EventKind, Events
from lipt.common.states import RunState
from lipt.coordinator.compute.messages import Progressed
from lipt.coordinator.compute.queue import Computation
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.settings import StorageSettings
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.files import collection_paused
from lipt.coordinator.state.maintenance import check_state
from lipt.coordinator.state.records import RunRecord
from lipt.coordinator.storage import StateStorage, aging_clock
from lipt.coordinator.uploads import Accounts
from tests.blob_files import PLENTY
from tests.clock import Clock
from tests.coordinator.fakes import FakeCompute
from tests.coordinator.made_up_runs import made_up_run
from tests.coordinator.state.conftest import KEPT, SPARE, StateBench, execute, stored_runs

HOUR, DAY = 3600.0, 86_400.0
NOW = 10_000_000_000.0  # long after every file was written


class Bench:
    """A directory with files of every kind; its store begins without runs."""

    def __init__(self, state: StateBench, database: Database) -> None:
        self.state, self.database = state, database
        self.events = Events()
        self.clock, self.idle = Clock(NOW), Clock(0.0)
        self.store = RunStore(database, clock=self.idle)
        self.compute = FakeCompute()
        self.accounts = Accounts(PLENTY, clock=self.clock, is_live=lambda _: False)
        self.storage = self.new_storage()

    def new_storage(
        self,
        sleep: Any = asyncio.sleep,
        *,
        # It is decades after the start.
        steady_clock: Callable[[], float] | None = None,
        **settings: Any,
    ) -> StateStorage:
        return StateStorage(
            self.state.directory,
            self.state.blobs,
            self.accounts,
            StorageSettings(unfinished_hours=1.0, unused_hours=24.0, **settings),
            self.events,
            self.store,
            self.compute.queue,
            wall_clock=self.clock,
            steady_clock=steady_clock or count(0.0, 1e9).__next__,
            sleep=sleep,
        )

    async def add(self, *runs: RunRecord) -> None:
        for run in runs:
            await self.store.add(run)
        self.idle.now += 2 * HOUR

    async def left(self, **settings: Any) -> list[str]:
        await self.new_storage(**settings).remove_overdue_runs()
        kept = [run.run_id for run in self.store.runs()]
        assert [run.run_id for run in await stored_runs(self.database)] == sorted(kept)
        return kept

    def put(self, text: str, hours_ago: float) -> BlobName:
        name = self.state.put(text)
        used_at = NOW - hours_ago * HOUR
        os.utime(self.state.path(text), (used_at, used_at))
        return name

    def begin(self, text: str, hours_ago: float) -> BlobName:
        name = BlobName.of(text.encode())
        with self.state.blobs.open_upload(name, 0) as upload:
            upload.write(text[:1].encode())
        part = self.state.directory / "uploads" / f"{name.sha256}.part"
        os.utime(part, (NOW - hours_ago * HOUR, NOW - hours_ago * HOUR))
        return name

    def there(self, texts: list[str]) -> list[str]:
        return [text for text in texts if self.state.has(text)]


@pytest.fixture
def bench(state: StateBench, database: Database) -> Bench:
    return Bench(state, database)


async def test_only_unneeded_files_are_removed(bench: Bench) -> None:
    old, young = bench.put("old features", 25.0), bench.put("young features", 23.0)
    # What a record names is no upload.
    needed = bench.state.put("ready shard 0")
    bench.accounts.restore({old.sha256: 12, young.sha256: 14, needed.sha256: 13}, {})
    await bench.storage.collect()
    assert bench.there([*SPARE, "old features"]) == []
    assert bench.there([*KEPT, "young features"]) == [*KEPT, "young features"]
    assert check_state(bench.state.directory).problems == ()
    assert bench.accounts.num_bytes(finished=True) == 14
    assert bench.events.counts() == {(EventKind.EXPIRED, "blobs"): 1}
    latest = bench.storage.latest
    assert latest.spare_bytes == len("young features")
    assert latest.needed_bytes == sum(
        path.stat().st_size for path in (bench.state.directory / "blobs").glob("*/*")
    ) - len("young features")
    await bench.storage.collect()
    assert bench.events.counts() == {(EventKind.EXPIRED, "blobs"): 1}


async def test_a_machine_that_slept_for_days_keeps_what_was_just_sent(bench: Bench) -> None:
    steady = Clock(0.0)
    storage = bench.new_storage(steady_clock=steady)
    bench.put("result to be reported", 0.0)
    part = bench.begin("being sent", 0.0)
    bench.clock.now += 2 * DAY
    await storage.collect()
    assert bench.there(["result to be reported"])
    assert [one.name for one in bench.state.blobs.expiry.parts()] == [part.sha256]
    steady.now += 25 * HOUR
    await storage.collect()
    assert not bench.there(["result to be reported"])


async def test_idle_uploads_are_removed(bench: Bench) -> None:
    old, young = bench.begin("cut long ago", 2.0), bench.begin("cut just now", 0.5)
    bench.accounts.restore({}, {old.sha256: 1, young.sha256: 1})
    with bench.state.blobs.open_upload(bench.begin("being sent", 3.0), 1) as upload:
        await bench.storage.collect()
        assert upload.offset_bytes == 1
    left = {part.name for part in bench.state.blobs.expiry.parts()}
    assert left == {young.sha256, upload.name.sha256}
    assert bench.accounts.num_unfinished() == 1
    assert bench.events.count(EventKind.EXPIRED, "uploads") == 1


async def test_blobs_in_use_by_requests_or_backups_stay(bench: Bench) -> None:
    name = bench.put("weights of a request", 1000.0)
    with bench.state.blobs.expiry.holding(name.sha256):
        await bench.storage.collect()
    assert bench.there(["weights of a request"])
    assert bench.there(SPARE) == []
    with collection_paused(bench.state.directory):
        await bench.storage.collect()
        assert bench.there(["weights of a request"])
    await bench.storage.collect()
    assert not bench.there(["weights of a request"])


async def test_an_unreadable_record_stops_the_removal(bench: Bench) -> None:
    broken = "UPDATE learners SET body = '{' WHERE run_id = 'training'"
    execute(bench.state.directory / "lipt.db", broken)
    await bench.storage.collect()
    assert bench.there(SPARE) == SPARE
    assert bench.events.counts() == {(EventKind.RETRIED, "collection"): 1}


async def test_needed_files_are_not_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    blob = bench.state.blobs.expiry.blob

    def note(sha256: str) -> object:
        looked_at.append(sha256)
        return blob(sha256)

    bench.put("young features", 23.0)
    monkeypatch.setattr(bench.state.blobs.expiry, "blob", note)
    await bench.storage.collect()
    names = {
        BlobName.of(text.encode()).sha256 for text in [*SPARE, "young features", "given weights"]
    }
    assert sorted(looked_at) == sorted(names)


async def test_collections_repeat_after_an_initial_pause(bench: Bench) -> None:
    await bench.add(ended("a", 9))
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        # Peers come back to what they have sent before anything goes.
        assert bool(bench.there(SPARE)) is bool(bench.store.runs()) is not bool(slept)
        slept.append(seconds)
        if len(slept) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await bench.new_storage(sleep, keep_days=1).run()
    assert slept == [900.0] * 3


async def test_a_running_collection_is_awaited(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    collect = bench.storage._collect

    def slow(uploads: frozenset[str]) -> object:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()
        return collect(uploads)

    monkeypatch.setattr(bench.storage, "_collect", slow)
    task = asyncio.create_task(bench.storage.collect())
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    is_waiting = not task.done()
    go_on.set()
    assert is_waiting
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.there(SPARE) == []


def ended(run_id: str, days_ago: float, state: RunState = RunState.READY) -> Any:
    return made_up_run(run_id, state=state).changed(ended_at=NOW - days_ago * DAY)


async def test_only_ended_runs_expire_and_only_if_configured(bench: Bench) -> None:
    await bench.add(
        ended("a", 900, RunState.FAILED),
        ended("b", 900, RunState.CANCELLED),
        made_up_run("c", state=RunState.TRAINING),
        made_up_run("d", state=RunState.MERGING),
    )
    assert await bench.left() == ["a", "b", "c", "d"]
    assert await bench.left(keep_days=901) == ["a", "b", "c", "d"]
    assert await bench.left(keep_days=899) == ["c", "d"]
    with pytest.raises(RunNotReadyError, match="only runs that have ended are removed"):
        await bench.store.remove("c")


async def test_a_run_in_recent_use_is_not_removed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.add(ended("a", 9), ended("b", 9), ended("c", 9))
    job = Computation("dear", "SelectSubset", "c", 1, True, 5.0, Progressed("", 0, 0))
    monkeypatch.setattr(bench.compute, "computations", lambda: (job,))
    bench.store.find("name-b")
    bench.idle.now += 3599.0
    assert await bench.left(keep_days=1) == ["b", "c"]
    bench.idle.now += 2.0
    assert await bench.left(keep_days=1) == ["c"]


def test_a_clock_set_years_ahead_removes_no_run() -> None:
    wall, steady = Clock(), Clock()
    wall.now = 100 * DAY
    by_records = aging_clock(90 * DAY, wall, steady)
    assert by_records() == 90 * DAY
    wall.now, steady.now = 5000 * DAY, steady.now + 3600.0
    assert by_records() == 90 * DAY + 3600.0
    # Behind the records it is the wall clock; of a new directory it begins there.
    wall.now = 1 * DAY
    assert by_records() == 1 * DAY
    assert aging_clock(None, wall, steady)() == 1 * DAY


async def test_a_failed_removal_is_repeated_at_the_next_collection(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.add(ended("a", 9), ended("b", 9))

    async def full(run_id: str) -> None:
        raise StateError("no space left.")

    with monkeypatch.context() as patched:
        patched.setattr(bench.database, "remove_run", full)
        assert await bench.left(keep_days=1) == ["a", "b"]
    assert bench.events.count(EventKind.RETRIED, "collection") == 1
    assert await bench.left(keep_days=1) == []
