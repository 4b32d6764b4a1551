from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from typing import Any

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.observability.logs import EventKind, Events
from lipt.coordinator.settings import StorageSettings
from lipt.coordinator.state.files import collection_paused
from lipt.coordinator.state.maintenance import check_state
from lipt.coordinator.storage.accounts import Accounts
from lipt.coordinator.storage.storage import Storage
from tests.clock import Clock
from tests.coordinator.state.conftest import StateBench
from tests.uploading import PLENTY

HOUR = 3600.0
NOW = 10_000_000_000.0  # long after every file was written
SPARE = ["ready shard 0", "ready shard 1", "training shard 0", "uploaded weights"]
SPARE += [f"cancelled {what}" for what in ("shard 0", "shard 1", "result 0", "snapshot 0")]
KEPT = ["ready result 0", "ready snapshot 0", "training shard 1", "training shard 2"]
KEPT += ["training result 0", "cancelled theta*", "ready theta_p", "x" * 24]
KEPT += ["diagnosis of ", "diagnosis of ready"]


class Bench:
    def __init__(self, state: StateBench) -> None:
        self.state = state
        self.events = Events()
        self.clock = Clock(NOW)
        self.accounts = Accounts(PLENTY, clock=self.clock, is_live=lambda _: False)
        self.storage = self.new_storage()

    def new_storage(self, sleep: Any = asyncio.sleep) -> Storage:
        return Storage(
            self.state.directory,
            self.state.blobs,
            self.accounts,
            StorageSettings(unfinished_hours=1.0, unused_hours=24.0),
            self.events,
            wall_clock=self.clock,
            sleep=sleep,
        )

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
def bench(state: StateBench) -> Bench:
    return Bench(state)


async def test_what_nobody_needs_or_has_used_for_long_goes_and_the_rest_stays(
    bench: Bench,
) -> None:
    old, young = bench.put("old features", 25.0), bench.put("young features", 23.0)
    bench.accounts.restore({old.sha256: 12, young.sha256: 14}, {})
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


async def test_uploads_that_got_no_byte_for_long_go(bench: Bench) -> None:
    old, young = bench.begin("cut long ago", 2.0), bench.begin("cut just now", 0.5)
    bench.accounts.restore({}, {old.sha256: 1, young.sha256: 1})
    with bench.state.blobs.open_upload(bench.begin("being sent", 3.0), 1) as upload:
        await bench.storage.collect()
        assert upload.offset_bytes == 1
    left = {part.sha256 for part in bench.state.blobs.expiry.parts()}
    assert left == {young.sha256, upload.name.sha256}
    assert bench.accounts.num_unfinished() == 1
    assert bench.events.count(EventKind.EXPIRED, "uploads") == 1


async def test_what_a_request_holds_or_a_backup_reads_stays(bench: Bench) -> None:
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


async def test_record_that_cannot_be_read_removes_nothing(bench: Bench) -> None:
    database = bench.state.directory / "lipt.db"
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE learners SET body = '{' WHERE run_id = 'training'")
    await bench.storage.collect()
    assert bench.there(SPARE) == SPARE
    assert bench.events.counts() == {(EventKind.RETRIED, "collection"): 1}


async def test_blobs_that_records_name_are_no_uploads(bench: Bench) -> None:
    bench.accounts.restore({bench.state.put("ready shard 0").sha256: 13}, {})
    await bench.storage.collect()
    assert bench.accounts.num_bytes(finished=True) == 0


async def test_files_that_records_need_are_not_looked_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_first_round_comes_after_a_while_and_then_again_and_again(bench: Bench) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        # Peers come back to what they have sent before anything goes.
        assert bool(bench.there(SPARE)) is not bool(slept)
        slept.append(seconds)
        if len(slept) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await bench.new_storage(sleep).run()
    assert slept == [900.0] * 3


async def test_round_that_is_under_way_at_the_end_is_waited_for(
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
