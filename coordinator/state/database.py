"""Database: SQLite in WAL mode, with one writer thread; one row per record, its JSON in `body`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Self, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from lipt.common.config.values import explain
from lipt.common.errors import LiptError, StateError
from lipt.common.inputs.specs import InputFormat
from lipt.common.states import RunState
from lipt.coordinator.state.files import make_private_file
from lipt.coordinator.state.records import (
    DiagnosisRecord,
    LearnerRecord,
    RunRecord,
    RunSummary,
    SubsetRecord,
    TokenRecord,
)

SCHEMA = 1

_TABLES = """
CREATE TABLE runs (
    run_id     TEXT PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    request_id TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    body       TEXT NOT NULL
) STRICT;
CREATE TABLE learners (
    run_id        TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    learner_index INTEGER NOT NULL,
    body          TEXT NOT NULL,
    PRIMARY KEY (run_id, learner_index)
) STRICT, WITHOUT ROWID;
-- All other records; those of a run go with it.
CREATE TABLE records (
    kind   TEXT NOT NULL,
    key    TEXT NOT NULL,
    run_id TEXT REFERENCES runs (run_id) ON DELETE CASCADE,
    body   TEXT NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT;
CREATE INDEX records_by_run ON records (run_id);
"""

RecordT = TypeVar("RecordT", bound=BaseModel)
_REMEDY = (
    "Free some space or mend the disk, then ask again: nothing acknowledged was lost. If the file "
    "is damaged, start on a copy that lipt state backup made."
)

KINDS: dict[type[BaseModel], tuple[str, str]] = {
    SubsetRecord: ("subset", "key"),
    DiagnosisRecord: ("diagnosis", "key"),
    TokenRecord: ("token", "token_id"),
}


def prepare(connection: sqlite3.Connection) -> None:
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found == 0:
        statements = [*_TABLES.split(";\n"), f"PRAGMA user_version = {SCHEMA}"]
        _commit(connection, lambda each: [each.execute(one) for one in statements])
    else:
        require_schema(found, "the state")


def require_schema(found: int, what: str) -> None:
    if found != SCHEMA:
        raise StateError(
            f"{what} has schema {found}, and this version knows {SCHEMA}. Use the lipt that wrote "
            "it, or another --state-dir."
        )


def write(connection: sqlite3.Connection, record: BaseModel) -> None:
    kind, key = KINDS[type(record)]
    connection.execute(
        "INSERT INTO records (kind, key, run_id, body) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (kind, key) DO UPDATE SET body = excluded.body",
        (
            kind,
            getattr(record, key),
            # A diagnosis of the data alone refers to no run.
            getattr(record, "run_id", None) or None,
            record.model_dump_json(),
        ),
    )


def write_run(
    connection: sqlite3.Connection, run: RunRecord, learners: Iterable[LearnerRecord]
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
    bodies = [(learner.index, learner.model_dump_json()) for learner in learners]
    # One statement for all: after each statement the thread waits for the GIL, which a busy event
    # loop rarely releases.
    connection.execute(
        "INSERT INTO learners (run_id, learner_index, body) "
        "SELECT ?, json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?) "
        "WHERE true ON CONFLICT (run_id, learner_index) DO UPDATE SET body = excluded.body",
        (run.run_id, json.dumps(bodies, ensure_ascii=False)),
    )


def read(
    connection: sqlite3.Connection,
    record: type[RecordT],
    problems: list[str],
    which: str = "ORDER BY key",
    values: tuple[object, ...] = (),
) -> Iterator[RecordT]:
    """Yield the records of a kind that a clause selects; unreadable ones go to `problems`."""
    kind, _ = KINDS[record]
    query = f"SELECT run_id, key, body FROM records WHERE kind = ? {which}"  # noqa: S608 - constants
    for run_id, key, body in connection.execute(query, (kind, *values)):
        of_run = f" of run {run_id}" if run_id else ""
        yield from _parsed(record, body, f"{kind} {key}{of_run}", problems)


def read_runs(
    connection: sqlite3.Connection, problems: list[str], ids: Collection[str] | None = None
) -> Iterator[RunRecord]:
    which = ""
    values: tuple[str, ...] = ()
    if ids is not None:
        which = "WHERE run_id IN (SELECT value FROM json_each(?))"
        values = (json.dumps(sorted(ids)),)
    learners: dict[str, list[LearnerRecord]] = {}
    query = f"SELECT run_id, learner_index, body FROM learners {which} ORDER BY 1, 2"  # noqa: S608
    for run_id, index, body in connection.execute(query, values):
        name = f"learner {index} of run {run_id}"
        learners.setdefault(run_id, []).extend(_parsed(LearnerRecord, body, name, problems))
    query = f"SELECT run_id, body FROM runs {which} ORDER BY created_at, run_id"  # noqa: S608
    for run_id, body in connection.execute(query, values):
        for run in _parsed(RunRecord, body, f"run {run_id}", problems):
            yield run.changed(learners=tuple(learners.get(run_id, ())))


def _parsed(kind: type[RecordT], body: str, name: str, problems: list[str]) -> Iterator[RecordT]:
    try:
        yield kind.model_validate_json(body)
    except (ValidationError, LiptError) as error:
        why = explain(error) if isinstance(error, ValidationError) else str(error)
        problems.append(f"the record of {name} cannot be read: {why[:500]}")


def read_summaries(connection: sqlite3.Connection, problems: list[str]) -> Iterator[RunSummary]:
    """Yield the summaries of all runs, oldest first, extracted from JSON by SQLite."""
    # Most runs share a few kinds of inputs, so each is parsed and stored once.
    same = cache(str)
    inputs_of = cache(_INPUTS.validate_json)
    for run_id, *names, state, ended_at, source, fingerprint, inputs in connection.execute(
        _SUMMARIES
    ):
        name, request_id, created_at = names
        try:
            yield RunSummary(
                run_id,
                name,
                request_id,
                created_at,
                RunState(state),
                ended_at,
                same(source),
                same(fingerprint),
                None if inputs is None else inputs_of(inputs),
            )
        except ValueError as error:
            problems.append(f"the record of run {run_id} cannot be read: {str(error)[:500]}")


_INPUTS: TypeAdapter[InputFormat] = TypeAdapter(InputFormat)
_SUMMARIES = """
    SELECT run_id, name, request_id, created_at,
        json_extract(body, '$.state'), json_extract(body, '$.ended_at'),
        json_extract(body, '$.source'), json_extract(body, '$.fingerprint'),
        json_extract(body, '$.inputs')
    FROM (
        SELECT run_id, name, request_id, created_at,
            CASE WHEN json_valid(body) THEN body ELSE '{}' END AS body
        FROM runs
    )
    ORDER BY created_at, run_id
"""


def require_readable(problems: Collection[str]) -> None:
    """Raise a StateError if some records cannot be read."""
    if problems:
        raise StateError(
            f"{next(iter(problems))}. lipt state check names all such records; restore a backup, "
            "or give another --state-dir."
        )


ResultT = TypeVar("ResultT")


class Database:
    """The open database: one thread writes in durable transactions; one run is read at once."""

    def __init__(
        self, connection: sqlite3.Connection, thread: ThreadPoolExecutor, reader: sqlite3.Connection
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
            raise StateError(f"{path} cannot be opened: {error}. {_REMEDY}") from None

    async def close(self) -> None:
        self._reader.close()
        await self._do(self._connection.close)
        self._thread.shutdown()

    async def load_runs(self, ids: Collection[str] | None = None) -> tuple[RunRecord, ...]:
        return await self._load(partial(read_runs, ids=ids))

    async def load_summaries(self) -> tuple[RunSummary, ...]:
        return await self._load(read_summaries)

    async def load(self, kind: type[RecordT]) -> tuple[RecordT, ...]:
        return await self._load(lambda *given: read(given[0], kind, given[1]))

    def read_run(self, run_id: str) -> RunRecord | None:
        problems: list[str] = []
        try:
            # One consistent view of the run and its learners.
            self._reader.execute("BEGIN")
            try:
                runs = tuple(read_runs(self._reader, problems, ids=(run_id,)))
            finally:
                self._reader.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise StateError(f"run {run_id} could not be read: {error}. {_REMEDY}") from error
        require_readable(problems)
        return runs[0] if runs else None

    async def save_run(self, run: RunRecord, learners: Iterable[LearnerRecord] = ()) -> None:
        await self._write(lambda connection: write_run(connection, run, learners))

    async def remove_run(self, run_id: str) -> None:
        # Dependent rows are removed with it: ON DELETE CASCADE.
        await self._write(
            lambda connection: connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))
        )

    async def save(self, *records: BaseModel) -> None:
        def save(connection: sqlite3.Connection) -> None:
            for record in records:
                write(connection, record)

        await self._write(save)

    async def find(self, kind: type[RecordT], key: str) -> RecordT | None:
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

    async def remove_subsets_scored_by(self, credential: str) -> int:
        """Remove subsets whose manifests name this credential as a scorer; returns their number."""
        which = (
            "kind = ? AND EXISTS (SELECT 1 FROM json_each(body, '$.manifest.scored_by.credentials')"
            " WHERE json_extract(value, '$.credential') = ?)"
        )
        query = f"DELETE FROM records WHERE {which}"  # noqa: S608 - constants
        values = (KINDS[SubsetRecord][0], credential)
        return await self._write(lambda connection: connection.execute(query, values).rowcount)

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

    async def _write(self, action: Callable[[sqlite3.Connection], ResultT]) -> ResultT:
        """Run an action as one transaction, which is durable on return."""
        return await self._do(partial(_commit, self._connection, action))

    async def _do(self, action: Callable[[], ResultT]) -> ResultT:
        loop = asyncio.get_running_loop()
        try:
            # A cancelled caller does not cancel its action.
            return await asyncio.shield(loop.run_in_executor(self._thread, action))
        except sqlite3.Error as error:
            raise StateError(f"the state could not be used: {error}. {_REMEDY}") from error


def _commit(
    connection: sqlite3.Connection, action: Callable[[sqlite3.Connection], ResultT]
) -> ResultT:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = action(connection)
        connection.execute("COMMIT")
    except BaseException:
        # On a full disk SQLite sometimes rolls back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


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


def _connect(path: Path) -> sqlite3.Connection:
    with suppress(OSError):  # SQLite reports more precisely why it cannot be opened
        make_private_file(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    prepare(connection)
    return connection
