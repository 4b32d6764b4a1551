"""Database: SQLite in WAL mode, one writer that commits many changes at once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self, TypeAlias, TypeVar

from lipt.common.errors import StateError
from lipt.coordinator.state.contents import read_runs, read_tokens, require_readable
from lipt.coordinator.state.files import make_private_file
from lipt.coordinator.state.records import (
    DataRecord,
    DiagnosisRecord,
    LearnerRecord,
    RunRecord,
    RunSummary,
    SubsetRecord,
    TokenRecord,
    read_summaries,
)
from lipt.coordinator.state.schema import prepare

# Run reader: reads single runs where they are asked for, in a moment and behind no write.


class RunReader:
    """A connection that only reads; belongs to the thread that opened it."""

    def __init__(self, path: Path) -> None:
        """Read a database.

        Raises:
            sqlite3.Error: it cannot be opened.
        """
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA query_only = ON")

    def read(self, run_id: str) -> RunRecord | None:
        """A run with its learners as it is on disk; None where there is none.

        Raises:
            StateError: it cannot be read.
        """
        problems: list[str] = []
        try:
            # One view of the run and its learners.
            self._connection.execute("BEGIN")
            try:
                runs = read_runs(self._connection, problems, ids=(run_id,))
            finally:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise StateError(
                f"run {run_id} could not be read: {error}. Nothing was lost by that; see "
                "lipt state check, and restore a backup where it finds the database damaged."
            ) from error
        require_readable(problems)
        return runs[0] if runs else None

    def close(self) -> None:
        """Give the file up."""
        self._connection.close()


# Group commit: what waits to be written goes to the disk together, in one transaction.
#
# The disk takes as long for a hundred records as for one. So whatever comes while a transaction is
# on its way is the next one, as a whole, and nobody waits longer than for two of them; where little
# is written, each action has its own. An action is answered when it is on the disk, never before.
#
# Should a transaction fail, each of its actions is done again, in one of its own: what cannot be
# written fails alone, and what the disk still takes is written. An action may so be done twice, and
# has to write the same both times.

Action: TypeAlias = Callable[[sqlite3.Connection], object]
# What an action raised; None where it is on the disk.
Outcome: TypeAlias = Exception | None


class GroupCommit:
    """The transactions of one connection; belongs to the event loop."""

    def __init__(self, connection: sqlite3.Connection, thread: Executor) -> None:
        """Write through `connection`, which lives in `thread`."""
        self._connection = connection
        self._thread = thread
        self._waiting: list[tuple[Action, asyncio.Future[Outcome]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(self, action: Action) -> None:
        """Do an action, after all that was asked for earlier; on return it is on the disk.

        Raises:
            Exception: what the action raised, or sqlite3.Error where it could not be committed:
                nothing of it was written.
        """
        written: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((action, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_waiting(), name="group commit")
        # A caller that leaves does not take its action along.
        error = await asyncio.shield(written)
        if error is not None:
            raise error

    async def finish(self) -> None:
        """Wait until nothing waits to be written."""
        if self._writing is not None:
            await self._writing

    async def _write_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting = self._waiting, []
            actions = [action for action, _ in group]
            try:
                outcomes = await loop.run_in_executor(
                    self._thread, commit_together, self._connection, actions
                )
            except RuntimeError as error:  # the thread has been shut down
                outcomes = (error,) * len(group)
            for (_, written), outcome in zip(group, outcomes, strict=True):
                written.set_result(outcome)
        self._writing = None


def commit_together(
    connection: sqlite3.Connection, actions: Sequence[Action]
) -> tuple[Outcome, ...]:
    """Do all actions in one transaction; where that fails, each in its own.

    Returns:
        What came of each, in their order.
    """
    together = _commit(connection, actions)
    if together is None or len(actions) == 1:
        return (together,) * len(actions)
    return tuple(_commit(connection, [action]) for action in actions)


def _commit(connection: sqlite3.Connection, actions: Sequence[Action]) -> Outcome:
    """BEGIN IMMEDIATE ... COMMIT, or ROLLBACK when an action or the COMMIT raises."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for action in actions:
                action(connection)
            connection.execute("COMMIT")
        except BaseException:
            # A full disk has SQLite roll back by itself, sometimes.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except Exception as error:  # noqa: BLE001 - it is raised where the action was asked for
        return error
    return None


# Database: all records of a state directory on disk, durable when a call returns.
#
# One thread owns the connection, so that an fsync never holds up the event loop; what several
# callers write at once shares one (`GroupCommit`). A run that has ended is read where it is asked
# for (`RunReader`).

ResultT = TypeVar("ResultT")
RecordT = TypeVar("RecordT", RunRecord, RunSummary, TokenRecord)


class Database:
    """The open database; what a method writes is on disk whole, or not at all."""

    def __init__(
        self, connection: sqlite3.Connection, thread: ThreadPoolExecutor, reader: RunReader
    ) -> None:
        self._connection = connection
        self._thread = thread
        self._reader = reader
        self._group = GroupCommit(connection, thread)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file, or create it.

        Raises:
            StateError: it is not a database, cannot be written, is of another schema, or is
                gone from a directory that has blobs.
        """
        _require_not_lost(path)
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="database")
        try:
            connection = thread.submit(_connect, path).result()
            return cls(connection, thread, RunReader(path))
        except sqlite3.Error as error:
            thread.shutdown()
            remedy = "Check that the directory is writable, or give another --state-dir."
            raise StateError(
                f"{path} cannot be opened: {error}. {_remedy(error, remedy)}"
            ) from None

    async def close(self) -> None:
        """Close the file; what was acknowledged is in it."""
        await self._group.finish()
        self._reader.close()
        await self._do(self._connection.close)
        self._thread.shutdown()

    async def load_runs(self, ids: Collection[str] | None = None) -> tuple[RunRecord, ...]:
        """All runs, or those of these ids, with their learners, oldest first.

        Raises:
            StateError: a record cannot be read.
        """
        return await self._load(partial(read_runs, ids=ids))

    async def load_summaries(self) -> tuple[RunSummary, ...]:
        """The summaries of all runs, oldest first, without reading their records.

        Raises:
            StateError: as `load_runs`.
        """
        return await self._load(read_summaries)

    def read_run(self, run_id: str) -> RunRecord | None:
        """A run with its learners as it is on disk, read at once; None where there is none.

        Raises:
            StateError: as `load_runs`.
        """
        return self._reader.read(run_id)

    async def load_tokens(self) -> tuple[TokenRecord, ...]:
        """All tokens that were given out, oldest first.

        Raises:
            StateError: as `load_runs`.
        """
        return await self._load(read_tokens)

    async def save_token(self, token: TokenRecord) -> None:
        """Write a token."""
        await self._write(partial(_save_token, token))

    async def save_run(self, run: RunRecord, learners: Iterable[LearnerRecord] = ()) -> None:
        """Write a run, and those of its learners that changed with it."""
        await self._write(partial(_save_run, run, tuple(learners)))

    async def remove_run(self, run_id: str) -> None:
        """Remove a run with its learners, subsets and diagnoses; harmless where it is gone."""
        await self._write(partial(_remove_run, run_id))

    async def find_subset(self, key: str) -> SubsetRecord | None:
        """The subset that was computed under this key."""
        rows = await self._do(
            lambda: self._connection.execute(
                "SELECT body FROM subsets WHERE subset_key = ?", (key,)
            ).fetchall()
        )
        return SubsetRecord.model_validate_json(rows[0][0]) if rows else None

    async def find_subsets(self, run_id: str, digest: str) -> tuple[SubsetRecord, ...]:
        """A run's subsets of these very examples and weights, newest first."""
        rows = await self._do(
            lambda: self._connection.execute(
                "SELECT body FROM subsets WHERE run_id = ? AND json_extract(body, '$.digest') = ?",
                (run_id, digest),
            ).fetchall()
        )
        found = [SubsetRecord.model_validate_json(row[0]) for row in rows]
        return tuple(sorted(found, key=lambda subset: (-subset.created_at, subset.key)))

    async def list_subsets(self, run_id: str, *, most: int) -> tuple[SubsetRecord, ...]:
        """A run's subsets, newest first, and no more of them than `most`."""
        rows = await self._do(
            lambda: self._connection.execute(
                "SELECT body FROM subsets WHERE run_id = ? "
                "ORDER BY json_extract(body, '$.created_at') DESC, subset_key LIMIT ?",
                (run_id, most),
            ).fetchall()
        )
        return tuple(SubsetRecord.model_validate_json(row[0]) for row in rows)

    async def save_subset(self, subset: SubsetRecord) -> None:
        """Write a subset."""
        await self._write(partial(_save_subset, subset))

    async def find_diagnosis(self, key: str) -> DiagnosisRecord | None:
        """The diagnosis that was computed under this key."""
        rows = await self._do(
            lambda: self._connection.execute(
                "SELECT body FROM diagnoses WHERE diagnosis_key = ?", (key,)
            ).fetchall()
        )
        return DiagnosisRecord.model_validate_json(rows[0][0]) if rows else None

    async def save_diagnosis(self, diagnosis: DiagnosisRecord) -> None:
        """Write a diagnosis."""
        await self._write(partial(_save_diagnosis, diagnosis))

    async def find_data(self, fingerprint: str) -> DataRecord | None:
        """The data set of that fingerprint, if the directory was ever served with it."""
        rows = await self._do(
            lambda: self._connection.execute(
                "SELECT body FROM data_sets WHERE fingerprint = ?", (fingerprint,)
            ).fetchall()
        )
        return DataRecord.model_validate_json(rows[0][0]) if rows else None

    async def save_data(self, data: Iterable[DataRecord]) -> None:
        """Write what the directory is served with now, under all its fingerprints."""
        records = tuple(data)
        await self._write(partial(_save_data, records))

    async def _load(
        self, read: Callable[[sqlite3.Connection, list[str]], tuple[RecordT, ...]]
    ) -> tuple[RecordT, ...]:
        problems: list[str] = []
        records = await self._do(lambda: read(self._connection, problems))
        require_readable(problems)
        return records

    async def _do(self, action: Callable[[], ResultT]) -> ResultT:
        loop = asyncio.get_running_loop()
        try:
            return await asyncio.shield(loop.run_in_executor(self._thread, action))
        except sqlite3.Error as error:
            raise _unusable(error) from error

    async def _write(self, action: Action) -> None:
        try:
            await self._group.write(action)
        except sqlite3.Error as error:
            raise _unusable(error) from error


def _unusable(error: sqlite3.Error) -> StateError:
    remedy = (
        "Nothing was lost that had been acknowledged; free some space or mend the disk, then ask "
        "again."
    )
    return StateError(f"the state could not be used: {error}. {_remedy(error, remedy)}")


def _require_not_lost(path: Path) -> None:
    """Refuse to begin anew where something was: its runs would be forgotten in silence."""
    if path.is_file() and path.stat().st_size:
        return
    # The database comes first in a new directory, and blobs only after it.
    blob = next((path.parent / "blobs").glob("*/*"), None)
    if blob is not None:
        raise StateError(
            f"{path} is missing or empty, but there are blobs beside it, {blob} for one: the runs "
            "that they belong to would be forgotten. Start on a copy that lipt state backup made, "
            f"or give another --state-dir; to forget them, delete {blob.parents[1]}."
        )


def _remedy(error: sqlite3.Error, otherwise: str) -> str:
    # An OperationalError is the disk's, any other DatabaseError the file's.
    damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(
        error, sqlite3.OperationalError | sqlite3.IntegrityError
    )
    if not damaged:
        return otherwise
    return (
        "It is damaged: start on a copy that lipt state backup made, or give another --state-dir."
    )


def _connect(path: Path) -> sqlite3.Connection:
    with suppress(OSError):  # SQLite says better why it cannot be opened
        make_private_file(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    prepare(connection)
    return connection


def _save_run(
    run: RunRecord, learners: tuple[LearnerRecord, ...], connection: sqlite3.Connection
) -> None:
    connection.execute(
        "INSERT INTO runs (run_id, name, request_id, created_at, body) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (run_id) DO UPDATE SET body = excluded.body",
        (
            run.run_id,
            run.name,
            run.request_id,
            run.created_at,
            run.model_dump_json(exclude={"learners"}),
        ),
    )
    if not learners:
        return
    bodies = [(learner.index, learner.model_dump_json()) for learner in learners]
    # One statement for all: after each this thread waits for its turn at the interpreter, which
    # the event loop hardly lets go of when it is busy.
    connection.execute(
        "INSERT INTO learners (run_id, learner_index, body) "
        "SELECT ?, json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?) "
        "WHERE true ON CONFLICT (run_id, learner_index) DO UPDATE SET body = excluded.body",
        (run.run_id, json.dumps(bodies, ensure_ascii=False)),
    )


def _remove_run(run_id: str, connection: sqlite3.Connection) -> None:
    # What refers to it goes with it: ON DELETE CASCADE.
    connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))


def _save_subset(subset: SubsetRecord, connection: sqlite3.Connection) -> None:
    connection.execute(
        "INSERT INTO subsets (subset_key, run_id, body) VALUES (?, ?, ?) "
        "ON CONFLICT (subset_key) DO UPDATE SET body = excluded.body",
        (subset.key, subset.run_id, subset.model_dump_json()),
    )


def _save_diagnosis(diagnosis: DiagnosisRecord, connection: sqlite3.Connection) -> None:
    connection.execute(
        "INSERT INTO diagnoses (diagnosis_key, run_id, body) VALUES (?, ?, ?) "
        "ON CONFLICT (diagnosis_key) DO UPDATE SET body = excluded.body",
        (diagnosis.key, diagnosis.run_id or None, diagnosis.model_dump_json()),
    )


def _save_token(token: TokenRecord, connection: sqlite3.Connection) -> None:
    connection.execute(
        "INSERT INTO tokens (token_id, body) VALUES (?, ?) "
        "ON CONFLICT (token_id) DO UPDATE SET body = excluded.body",
        (token.token_id, token.model_dump_json()),
    )


def _save_data(data: tuple[DataRecord, ...], connection: sqlite3.Connection) -> None:
    connection.executemany(
        "INSERT INTO data_sets (fingerprint, body) VALUES (?, ?) "
        "ON CONFLICT (fingerprint) DO UPDATE SET body = excluded.body",
        [(one.fingerprint, one.model_dump_json()) for one in data],
    )
