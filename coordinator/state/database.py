"""Database: SQLite in WAL mode, with one writer thread."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from pydantic import BaseModel

from lipt.common.errors import StateError
from lipt.coordinator.state.files import make_private_file
from lipt.coordinator.state.records import (
    LearnerRecord,
    RunRecord,
    RunSummary,
    SubsetRecord,
)
from lipt.coordinator.state.schema import (
    RecordT,
    prepare,
    read,
    read_runs,
    read_summaries,
    require_readable,
    write,
    write_run,
)

ResultT = TypeVar("ResultT")


class Database:
    """The open database; each write is one durable transaction.

    One thread writes, so an fsync never blocks the event loop. Single runs are read at once.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        thread: ThreadPoolExecutor,
        reader: sqlite3.Connection,
    ) -> None:
        self._connection = connection
        self._thread = thread
        self._reader = reader

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the file; a StateError if it is invalid, or missing beside blobs."""
        _require_not_lost(path)
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="database")
        try:
            connection = thread.submit(_connect, path).result()
            reader = sqlite3.connect(path, isolation_level=None)
            reader.execute("PRAGMA query_only = ON")
            return cls(connection, thread, reader)
        except sqlite3.Error as error:
            thread.shutdown()
            remedy = "Check that the directory is writable, or give another --state-dir."
            raise StateError(
                f"{path} cannot be opened: {error}. {_remedy(error, remedy)}"
            ) from None

    async def close(self) -> None:
        """Finish all writes and close the file."""
        self._reader.close()
        await self._do(self._connection.close)
        self._thread.shutdown()

    async def load_runs(self, ids: Collection[str] | None = None) -> tuple[RunRecord, ...]:
        """All runs, or those of these ids, with their learners, oldest first."""
        return await self._load(partial(read_runs, ids=ids))

    async def load_summaries(self) -> tuple[RunSummary, ...]:
        """The summaries of all runs, oldest first."""
        return await self._load(read_summaries)

    async def load(self, kind: type[RecordT]) -> tuple[RecordT, ...]:
        """All records of a kind, by key."""
        return await self._load(lambda *given: read(given[0], kind, given[1]))

    def read_run(self, run_id: str) -> RunRecord | None:
        """The stored run with its learners; blocks for the read."""
        problems: list[str] = []
        try:
            # One consistent view of the run and its learners.
            self._reader.execute("BEGIN")
            try:
                runs = tuple(read_runs(self._reader, problems, ids=(run_id,)))
            finally:
                self._reader.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise StateError(
                f"run {run_id} could not be read: {error}. Run lipt state check; if it finds "
                "the database damaged, restore a backup."
            ) from error
        require_readable(problems)
        return runs[0] if runs else None

    async def save_run(self, run: RunRecord, learners: Iterable[LearnerRecord] = ()) -> None:
        """Write a run and its changed learners."""
        await self._write(lambda connection: write_run(connection, run, learners))

    async def remove_run(self, run_id: str) -> None:
        """Remove a run, if it exists, with its learners, subsets and diagnoses."""
        # Dependent rows are removed with it: ON DELETE CASCADE.
        await self._write(
            lambda connection: connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))
        )

    async def save(self, *records: BaseModel) -> None:
        """Write records, all or none."""

        def save(connection: sqlite3.Connection) -> None:
            for record in records:
                write(connection, record)

        await self._write(save)

    async def find(self, kind: type[RecordT], key: str) -> RecordT | None:
        """The record with this key, if it exists."""
        found = await self._find(kind, "AND key = ?", key)
        return found[0] if found else None

    async def find_subsets(
        self, run_id: str, digest: str | None = None, *, most: int = -1
    ) -> tuple[SubsetRecord, ...]:
        """A run's newest `most` subsets, newest first; of one digest, if given."""
        which = (
            "AND run_id = ? AND ifnull(json_extract(body, '$.digest') = ?, true) "
            "ORDER BY json_extract(body, '$.created_at') DESC, key LIMIT ?"
        )
        return await self._find(SubsetRecord, which, run_id, digest, most)

    async def _find(self, kind: type[RecordT], which: str, *values: object) -> tuple[RecordT, ...]:
        return await self._load(
            lambda connection, problems: read(connection, kind, problems, which, values)
        )

    async def _load(
        self, load: Callable[[sqlite3.Connection, list[str]], Iterator[ResultT]]
    ) -> tuple[ResultT, ...]:
        problems: list[str] = []
        records = await self._do(lambda: tuple(load(self._connection, problems)))
        require_readable(problems)
        return records

    async def _write(self, action: Callable[[sqlite3.Connection], object]) -> None:
        """Run an action as one transaction, which is durable on return."""
        await self._do(partial(_commit, self._connection, action))

    async def _do(self, action: Callable[[], ResultT]) -> ResultT:
        loop = asyncio.get_running_loop()
        try:
            # A cancelled caller does not cancel its action.
            return await asyncio.shield(loop.run_in_executor(self._thread, action))
        except sqlite3.Error as error:
            remedy = (
                "Nothing acknowledged was lost; free some space or mend the disk, then ask again."
            )
            raise StateError(
                f"the state could not be used: {error}. {_remedy(error, remedy)}"
            ) from error


def _commit(connection: sqlite3.Connection, action: Callable[[sqlite3.Connection], object]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        action(connection)
        connection.execute("COMMIT")
    except BaseException:
        # On a full disk SQLite sometimes rolls back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _require_not_lost(path: Path) -> None:
    if path.is_file() and path.stat().st_size:
        return
    # In a new directory the database is created before the first blob.
    blob = next((path.parent / "blobs").glob("*/*"), None)
    if blob is not None:
        raise StateError(
            f"{path} is missing or empty, but there are blobs beside it, {blob} for one. Start on "
            f"a copy that lipt state backup made; to forget the runs, delete {blob.parents[1]}."
        )


def _remedy(error: sqlite3.Error, otherwise: str) -> str:
    # An OperationalError means a disk problem, any other DatabaseError a damaged file.
    damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(
        error, sqlite3.OperationalError | sqlite3.IntegrityError
    )
    restore = "It is damaged: start on a copy that lipt state backup made."
    return restore if damaged else otherwise


def _connect(path: Path) -> sqlite3.Connection:
    with suppress(OSError):  # SQLite reports more precisely why it cannot be opened
        make_private_file(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    prepare(connection)
    return connection
