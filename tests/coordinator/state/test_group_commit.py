from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lipt.coordinator.state.database import Action, GroupCommit


class Bench:
    """A table of numbers that are unique, and the statements that its connection was given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.statements: list[str] = []
        self.thread = ThreadPoolExecutor(1)
        connection = self.thread.submit(self._open).result()
        self.connection = connection
        self.group = GroupCommit(connection, self.thread)

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY)")
        connection.set_trace_callback(self.statements.append)
        return connection

    @property
    def num_transactions(self) -> int:
        return self.statements.count("COMMIT")

    def on_disk(self) -> list[int]:
        """As another process sees it."""
        with contextlib.closing(sqlite3.connect(self.path)) as other:
            return [row[0] for row in other.execute("SELECT number FROM numbers ORDER BY number")]

    async def write(self, number: int) -> None:
        await self.group.write(insert(number))

    async def write_all(self, *actions: Action) -> list[object]:
        return await asyncio.gather(*map(self.group.write, actions), return_exceptions=True)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "numbers.db")
    yield bench
    await bench.group.finish()
    bench.thread.submit(bench.connection.close).result()
    bench.thread.shutdown()


def insert(number: int) -> Action:
    return lambda connection: connection.execute("INSERT INTO numbers VALUES (?)", (number,))


async def test_what_waits_is_written_in_one_transaction(bench: Bench) -> None:
    await asyncio.gather(*map(bench.write, range(100)))
    assert bench.on_disk() == list(range(100))
    assert bench.num_transactions == 1


async def test_what_comes_while_one_is_on_its_way_is_the_next(bench: Bench) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(connection: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()

    first = asyncio.create_task(bench.group.write(slow))
    await begun.wait()
    others = [asyncio.create_task(bench.write(number)) for number in range(50)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in others)
    go_on.set()
    await asyncio.gather(first, *others)
    assert bench.num_transactions == 2


async def test_action_that_cannot_be_written_fails_alone(bench: Bench) -> None:
    await bench.write(3)

    def raises(_: sqlite3.Connection) -> None:
        raise ValueError("no such action")

    outcomes = await bench.write_all(insert(1), insert(3), raises, insert(2))
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        sqlite3.IntegrityError,
        ValueError,
        type(None),
    ]
    assert bench.on_disk() == [1, 2, 3]


async def test_disk_that_refuses_fails_all_and_the_next_begins_anew(bench: Bench) -> None:
    (pages,) = bench.thread.submit(
        lambda: bench.connection.execute("PRAGMA page_count").fetchone()
    ).result()
    limit = "PRAGMA max_page_count = {}"
    bench.thread.submit(bench.connection.execute, limit.format(pages)).result()
    large: Action = lambda connection: connection.execute(  # noqa: E731
        "CREATE TABLE large AS SELECT zeroblob(100000)"
    )
    outcomes = await bench.write_all(large, large)
    assert all("full" in str(outcome) for outcome in outcomes)
    bench.thread.submit(bench.connection.execute, limit.format(10**6)).result()
    assert await bench.write_all(insert(1), insert(2)) == [None, None]
    assert bench.on_disk() == [1, 2]


async def test_caller_that_leaves_does_not_take_its_action_along(bench: Bench) -> None:
    leaving, staying = (asyncio.create_task(bench.write(number)) for number in (1, 2))
    await asyncio.sleep(0)
    leaving.cancel()
    await staying
    assert bench.on_disk() == [1, 2]
    assert leaving.cancelled()


async def test_who_asks_too_late_is_refused(bench: Bench) -> None:
    ended = ThreadPoolExecutor(1)
    ended.shutdown()
    group = GroupCommit(bench.connection, ended)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shutdown"):
            await group.write(insert(1))
