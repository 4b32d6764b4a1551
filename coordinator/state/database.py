"""Database: SQLite in WAL mode, one writer that commits many changes at once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self, TypeAlias, TypeVar

from lipt.common.errors import StateError
from lipt.coordinator.state.contents import (
    RecordT,
    read_runs,
    read_summaries,
    read_tokens,
    require_readable,
)
from lipt.coordinator.state.files import make_private_file
from lipt.coordinator.state.records import (
    DataRecord,
    DiagnosisRecord,
    LearnerRecord,
    RunRecord,
    RunSummary,
    SubsetRecord,
    TokenRecord,
)
from lipt.coordinator.state.schema import prepare

Action: TypeAlias = Callable[[sqlite3.Connection], object]
# The exception of an action; None where it is on the disk.
Outcome: TypeAlias = Exception | None
ResultT = TypeVar("ResultT")


class GroupCommit:
    """Writes everything that waits in one transaction; belongs to the event loop.

    The disk takes as long for a hundred records as for one, so nobody waits longer than for two
    transactions. An action returns when it is on the disk, never before. If a transaction fails,
    each of its actions is repeated in one of its own, so an action has to write the same twice.
    """

    def __init__(self, connection: sqlite3.Connection, thread: Executor) -> None:
        """Write through `connection`, which lives in `thread`."""
        self._connection = connection
        self._thread = thread
        self._waiting: list[tuple[Action, asyncio.Future[Outcome]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(self, action: Action) -> None:
        """Run an action after all earlier ones; on return it is on the disk.

        Raises:
            Exception: of the action or of SQLite; nothing of the action was written.
        """
        written: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((action, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_waiting(), name="group commit")
        # A cancelled caller does not cancel its action.
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
    """Run all actions in one transaction; if that fails, each in its own."""
    together = _commit(connection, actions)
    if together is None or len(actions) == 1:
        return (together,) * len(actions)
    return tuple(_commit(connection, [action]) for action in actions)


def _commit(connection: sqlite3.Connection, actions: Sequence[Action]) -> Outcome:
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for action in actions:
                action(connection)
            connection.execute("COMMIT")
        except BaseException:
            # On a full disk SQLite sometimes rolls back by itself.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except Exception as error:  # noqa: BLE001 - it is raised where the action was asked for
        return error
    return None


class Database:
    """The open database; what a method writes is on disk whole, or not at all.

    One thread owns the writing connection, so that an fsync never holds up the event loop. Single
    runs are read at once, through a second connection that only reads.
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
        self._group = GroupCommit(connection, thread)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file, or create it.

        Raises:
            StateError: it is no database, cannot be written, has another schema, or is missing
                beside blobs.
        """
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
        """The summaries of all runs, oldest first; raises as `load_runs`."""
        return await self._load(read_summaries)

    async def load_tokens(self) -> tuple[TokenRecord, ...]:
        """All tokens, oldest first; raises as `load_runs`."""
        return await self._load(read_tokens)

    def read_run(self, run_id: str) -> RunRecord | None:
        """A run with its learners as it is on disk, read at once; raises as `load_runs`."""
        problems: list[str] = []
        try:
            # One view of the run and its learners.
            self._reader.execute("BEGIN")
            try:
                runs = read_runs(self._reader, problems, ids=(run_id,))
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
        """Write a run, and those of its learners that changed."""
        await self._write(partial(_save_run, run, tuple(learners)))

    async def remove_run(self, run_id: str) -> None:
        """Remove a run with its learners, subsets and diagnoses, if it is there."""
        # What refers to it goes with it: ON DELETE CASCADE.
        await self._write(
            lambda connection: connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))
        )

    async def find_subset(self, key: str) -> SubsetRecord | None:
        """The subset of this request key."""
        found = await self._find(SubsetRecord, "subsets WHERE subset_key = ?", key)
        return found[0] if found else None

    async def find_subsets(self, run_id: str, digest: str) -> tuple[SubsetRecord, ...]:
        """A run's subsets of these examples and weights, newest first."""
        where = f"run_id = ? AND json_extract(body, '$.digest') = ? {_NEWEST_FIRST}"
        return await self._find(SubsetRecord, f"subsets WHERE {where}", run_id, digest)

    async def list_subsets(self, run_id: str, *, most: int) -> tuple[SubsetRecord, ...]:
        """The newest `most` subsets of a run, newest first."""
        where = f"run_id = ? {_NEWEST_FIRST} LIMIT ?"
        return await self._find(SubsetRecord, f"subsets WHERE {where}", run_id, most)

    async def save_subset(self, subset: SubsetRecord) -> None:
        """Write a subset."""
        key = {"subset_key": subset.key, "run_id": subset.run_id}
        await self._write(partial(_upsert, "subsets", key, subset))

    async def find_diagnosis(self, key: str) -> DiagnosisRecord | None:
        """The diagnosis of this request key."""
        found = await self._find(DiagnosisRecord, "diagnoses WHERE diagnosis_key = ?", key)
        return found[0] if found else None

    async def save_diagnosis(self, diagnosis: DiagnosisRecord) -> None:
        """Write a diagnosis."""
        key = {"diagnosis_key": diagnosis.key, "run_id": diagnosis.run_id or None}
        await self._write(partial(_upsert, "diagnoses", key, diagnosis))

    async def save_token(self, token: TokenRecord) -> None:
        """Write a token."""
        await self._write(partial(_upsert, "tokens", {"token_id": token.token_id}, token))

    async def find_data(self, fingerprint: str) -> DataRecord | None:
        """The data set of that fingerprint, if the directory was ever served with it."""
        found = await self._find(DataRecord, "data_sets WHERE fingerprint = ?", fingerprint)
        return found[0] if found else None

    async def save_data(self, data: Iterable[DataRecord]) -> None:
        """Write the data set that is served now, under all its fingerprints."""
        records = tuple(data)

        def save(connection: sqlite3.Connection) -> None:
            for one in records:
                _upsert("data_sets", {"fingerprint": one.fingerprint}, one, connection)

        await self._write(save)

    async def _find(
        self, record: type[RecordT], where: str, *values: object
    ) -> tuple[RecordT, ...]:
        query = f"SELECT body FROM {where}"  # noqa: S608 - constants of this file
        rows = await self._do(lambda: self._connection.execute(query, values).fetchall())
        return tuple(record.model_validate_json(body) for (body,) in rows)

    async def _load(
        self, read: Callable[[sqlite3.Connection, list[str]], tuple[ResultT, ...]]
    ) -> tuple[ResultT, ...]:
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


_NEWEST_FIRST = "ORDER BY json_extract(body, '$.created_at') DESC, subset_key"


def _unusable(error: sqlite3.Error) -> StateError:
    remedy = "Nothing acknowledged was lost; free some space or mend the disk, then ask again."
    return StateError(f"the state could not be used: {error}. {_remedy(error, remedy)}")


def _require_not_lost(path: Path) -> None:
    if path.is_file() and path.stat().st_size:
        return
    # The database comes first in a new directory, and blobs only after it.
    blob = next((path.parent / "blobs").glob("*/*"), None)
    if blob is not None:
        raise StateError(
            f"{path} is missing or empty, but there are blobs beside it, {blob} for one. Start on "
            f"a copy that lipt state backup made; to forget the runs, delete {blob.parents[1]}."
        )


def _remedy(error: sqlite3.Error, otherwise: str) -> str:
    # An OperationalError is the disk's, any other DatabaseError the file's.
    damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(
        error, sqlite3.OperationalError | sqlite3.IntegrityError
    )
    restore = "It is damaged: start on a copy that lipt state backup made."
    return restore if damaged else otherwise


def _connect(path: Path) -> sqlite3.Connection:
    with suppress(OSError):  # SQLite says better why it cannot be opened
        make_private_file(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    prepare(connection)
    return connection


def _upsert(
    table: str, columns: Mapping[str, object], record: RecordT, connection: sqlite3.Connection
) -> None:
    """Write a record; the first column is the table's key."""
    names = (*columns, "body")
    connection.execute(
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "  # noqa: S608
        f"ON CONFLICT ({names[0]}) DO UPDATE SET body = excluded.body",
        (*columns.values(), record.model_dump_json(exclude={"learners"})),
    )


def _save_run(
    run: RunRecord, learners: tuple[LearnerRecord, ...], connection: sqlite3.Connection
) -> None:
    columns = {name: getattr(run, name) for name in ("run_id", "name", "request_id", "created_at")}
    _upsert("runs", columns, run, connection)
    if not learners:
        return
    bodies = [(learner.index, learner.model_dump_json()) for learner in learners]
    # One statement for all: after each this thread waits for its turn at the interpreter, which
    # a busy event loop hardly lets go of.
    connection.execute(
        "INSERT INTO learners (run_id, learner_index, body) "
        "SELECT ?, json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?) "
        "WHERE true ON CONFLICT (run_id, learner_index) DO UPDATE SET body = excluded.body",
        (run.run_id, json.dumps(bodies, ensure_ascii=False)),
    )
