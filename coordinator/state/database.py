"""Database: SQLite in WAL mode, with one writer thread; one row per record, its JSON in `body`."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Self, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from lipt.common.config.values import explain
from lipt.common.errors import DiskFullError, LiptError, StateError, UnreadableRunError
from lipt.common.states import RunState
from lipt.coordinator.state.files import make_private_file
from lipt.coordinator.state.records import (
    DiagnosisRecord,
    LearnerRecord,
    MixtureRecord,
    RunRecord,
    RunSummary,
    SubsetRecord,
    TokenRecord,
)
from lipt.data.inputs.specs import InputFormat

logger = logging.getLogger(__name__)

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

# SQLite's functions refuse the whole statement for one text that is not JSON.
_JSON = "CASE WHEN json_valid(body) THEN body ELSE '{}' END"
_OF_RUN = f"AND run_id = ? ORDER BY json_extract({_JSON}, '$.created_at') DESC, key LIMIT ?"
# In bytes that are no UTF-8, which SQLite stores, escapes that JSON does not have.
read_text = partial(str, encoding="utf-8", errors="backslashreplace")

KINDS: dict[type[BaseModel], tuple[str, str]] = {
    SubsetRecord: ("subset", "key"),
    DiagnosisRecord: ("diagnosis", "key"),
    MixtureRecord: ("mixture", "key"),
    TokenRecord: ("token", "token_id"),
}


def prepare(connection: sqlite3.Connection) -> None:
    schema = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if schema == 0:
        statements = [*_TABLES.split(";\n"), f"PRAGMA user_version = {SCHEMA}"]
        _commit(connection, lambda each: [each.execute(statement) for statement in statements])
    else:
        require_schema(schema, "the state")


def require_schema(schema: int, what: str) -> None:
    if schema != SCHEMA:
        raise StateError(
            f"{what} has schema {schema}, and this version knows {SCHEMA}. Use the lipt that wrote "
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
    kind, key_field = KINDS[record]
    query = f"SELECT run_id, key, body FROM records WHERE kind = ? {which}"  # noqa: S608 - constants
    for run_id, key, body in connection.execute(query, (kind, *values)):
        of_run = f" of run {run_id}" if run_id else ""
        yield from _parsed(record, body, f"{kind} {key}{of_run}", problems, {key_field: key})


def read_run(connection: sqlite3.Connection, problems: list[str], run_id: str) -> RunRecord | None:
    """The run with its learners; None without it, or if one of its rows is unreadable."""
    run, learners, damage, whose = None, list[LearnerRecord](), list[str](), f"run {run_id}"
    query = "SELECT learner_index, body FROM learners WHERE run_id = ? ORDER BY 1"
    for index, body in connection.execute(query, (run_id,)):
        name = f"learner {index} of {whose}"
        learners += _parsed(LearnerRecord, body, name, damage, {"index": index})
    query = "SELECT name, request_id, created_at, body FROM runs WHERE run_id = ?"
    for *columns, body in connection.execute(query, (run_id,)):
        row = dict(zip(("name", "request_id", "created_at"), columns, strict=True))
        for record in _parsed(RunRecord, body, whose, damage, {"run_id": run_id, **row}):
            run = record.changed(learners=tuple(learners))
            damage += () if damage else map(_unreadable(whose), run.contradictions())
    problems += damage
    return None if damage else run


def _parsed(
    kind: type[RecordT], body: str, name: str, problems: list[str], row: Mapping[str, object]
) -> Iterator[RecordT]:
    """Yield the record, if its text is readable and has the values of its row."""
    say = _unreadable(name)
    try:
        record = kind.model_validate_json(body)
    except (ValidationError, LiptError) as error:
        problems.append(say(explain(error) if isinstance(error, ValidationError) else str(error)))
        return
    differing = [field for field, value in row.items() if getattr(record, field) != value]
    if differing:
        problems.append(say(f"its {' and '.join(differing)} are those of another"))
    else:
        yield record


def _unreadable(name: str) -> Callable[[str], str]:
    return lambda why: f"the record of {name} cannot be read: {why[:_MOST_CHARACTERS]}"


def _with_remedy(problem: str) -> str:
    return f"{problem}. Other runs are not affected; restore this one from a backup."


def read_summaries(connection: sqlite3.Connection) -> Iterator[RunSummary]:
    """Yield the summaries of all runs, oldest first, extracted from JSON by SQLite."""
    # Most runs share a few kinds of inputs, so each is parsed and stored once.
    same, inputs_of = cache(str), cache(_INPUTS.validate_json)
    for run_id, name, request_id, created_at, state, ended_at, *texts in connection.execute(
        _SUMMARIES
    ):
        try:
            source, fingerprint, inputs = texts
            values = (run_id, name, request_id, created_at, state, ended_at)
            kept = (same(source), same(fingerprint), inputs and inputs_of(inputs))
            yield _SUMMARY.validate_python(
                dict(zip(RunSummary.__slots__, values + kept, strict=False))
            )
        except ValueError as error:
            why = explain(error) if isinstance(error, ValidationError) else str(error)
            shown_at = created_at if abs(created_at) < _LAST_SECOND else 0.0
            summary = RunSummary(run_id, name, request_id, shown_at, RunState.PENDING)
            yield summary.unreadable(_with_remedy(_unreadable(f"run {run_id}")(why)))


_MOST_CHARACTERS = 100
_LAST_SECOND = 6e10
_INPUTS: TypeAdapter[InputFormat] = TypeAdapter(InputFormat)
_SUMMARY = TypeAdapter(RunSummary)
_SUMMARIES = f"""
    SELECT run_id, name, request_id, created_at,
        json_extract(body, '$.state'), json_extract(body, '$.ended_at'),
        json_extract(body, '$.source'), json_extract(body, '$.fingerprint'),
        json_extract(body, '$.inputs')
    FROM (SELECT run_id, name, request_id, created_at, {_JSON} AS body FROM runs)
    ORDER BY created_at, run_id
"""  # noqa: S608 - constants


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
            reader.text_factory = read_text
            reader.execute("PRAGMA query_only = ON")
            return cls(connection, thread, reader)
        except sqlite3.Error as error:
            thread.shutdown()
            raise StateError(f"{path} cannot be opened: {error}. {_REMEDY}") from None

    async def close(self) -> None:
        self._reader.close()
        await self._do(self._connection.close)
        self._thread.shutdown()

    async def load_summaries(self) -> tuple[RunSummary, ...]:
        return await self._load(lambda connection, _: read_summaries(connection))

    async def load(self, kind: type[RecordT]) -> tuple[RecordT, ...]:
        return await self._load(lambda *given: read(given[0], kind, given[1]))

    def read_run(self, run_id: str) -> RunRecord | None:
        """The stored run; an UnreadableRunError if one of its rows is damaged."""
        problems: list[str] = []
        try:
            # One consistent view of the run and its learners.
            self._reader.execute("BEGIN")
            try:
                run = read_run(self._reader, problems, run_id)
            finally:
                self._reader.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise StateError(f"run {run_id} could not be read: {error}. {_REMEDY}") from error
        if problems:
            raise UnreadableRunError(_with_remedy(problems[0]))
        return run

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
        records = await self._find(kind, "AND key = ?", key)
        return records[0] if records else None

    async def find_subsets(
        self, run_id: str, digest: str | None = None, *, most: int = -1
    ) -> tuple[SubsetRecord, ...]:
        """A run's newest `most` subsets, newest first; of one digest, if given."""
        which = f"AND ifnull(json_extract({_JSON}, '$.digest') = ?, true) {_OF_RUN}"
        return await self._find(SubsetRecord, which, digest, run_id, most)

    async def find_mixtures(self, run_id: str, *, most: int) -> tuple[MixtureRecord, ...]:
        """A run's newest `most` mixtures, newest first."""
        return await self._find(MixtureRecord, _OF_RUN, run_id, most)

    async def find_diagnosis(self, sha256: str) -> DiagnosisRecord | None:
        """A diagnosis by its file's digest."""
        which = "AND json_extract(body, '$.blob.sha256') = ? LIMIT 1"
        return next(iter(await self._find(DiagnosisRecord, which, sha256)), None)

    async def remove_subsets_scored_by(self, credential: str) -> int:
        """Remove subsets whose manifests name this credential as a scorer; returns their number."""
        named = f"json_each({_JSON}, '$.manifest.scored_by.credentials')"
        is_it = "CASE type WHEN 'object' THEN json_extract(value, '$.credential') END = ?"
        which = f"kind = ? AND EXISTS (SELECT 1 FROM {named} WHERE {is_it})"  # noqa: S608 - constants
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
        """Load the readable records; unreadable ones are logged, and count as absent."""
        problems: list[str] = []
        records = await self._do(lambda: tuple(load(self._connection, problems)))
        for problem in problems:
            logger.error("%s. lipt state check names all such records", problem)
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
            full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            kind = DiskFullError if full else StateError
            raise kind(f"the state could not be used: {error}. {_REMEDY}") from error


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
    connection.text_factory = read_text
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    prepare(connection)
    return connection
