"""Database schema: one row per record, JSON in `body`, version in `PRAGMA user_version`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from lipt.common.config.values import explain
from lipt.common.errors import LiptError, StateError
from lipt.common.inputs.specs import InputFormat
from lipt.common.states import RunState
from lipt.coordinator.state.records import (
    DataRecord,
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
CREATE TABLE subsets (
    subset_key TEXT PRIMARY KEY,
    run_id     TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    body       TEXT NOT NULL
) STRICT;
CREATE INDEX subsets_by_run ON subsets (run_id);
-- A diagnosis of the data alone is of no run.
CREATE TABLE diagnoses (
    diagnosis_key TEXT PRIMARY KEY,
    run_id        TEXT REFERENCES runs (run_id) ON DELETE CASCADE,
    body          TEXT NOT NULL
) STRICT;
-- What the directory was served with: runs of other data than that are held.
CREATE TABLE data_sets (
    fingerprint TEXT PRIMARY KEY,
    body        TEXT NOT NULL
) STRICT;
-- Digests of the tokens that were given out.
CREATE TABLE tokens (
    token_id TEXT PRIMARY KEY,
    body     TEXT NOT NULL
) STRICT;
"""

Single: TypeAlias = SubsetRecord | DiagnosisRecord | DataRecord | TokenRecord
SingleT = TypeVar("SingleT", SubsetRecord, DiagnosisRecord, DataRecord, TokenRecord)
RecordT = TypeVar(
    "RecordT", RunRecord, LearnerRecord, SubsetRecord, DiagnosisRecord, DataRecord, TokenRecord
)

# Each record type's table, and its attributes by column; the first column is the key.
_COLUMNS: dict[type, tuple[str, dict[str, str]]] = {
    RunRecord: ("runs", {name: name for name in ("run_id", "name", "request_id", "created_at")}),
    SubsetRecord: ("subsets", {"subset_key": "key", "run_id": "run_id"}),
    DiagnosisRecord: ("diagnoses", {"diagnosis_key": "key", "run_id": "run_id"}),
    DataRecord: ("data_sets", {"fingerprint": "fingerprint"}),
    TokenRecord: ("tokens", {"token_id": "token_id"}),
}


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty database in one transaction; refuse other schemas."""
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found == 0:
        try:
            connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    else:
        require_schema(found, "the state")


def require_schema(found: int, what: str) -> None:
    """Refuse a database with another schema, with a StateError."""
    if found != SCHEMA:
        raise StateError(
            f"{what} has schema {found}, and this version knows {SCHEMA}. Use the lipt that wrote "
            "it, or another --state-dir."
        )


def write(connection: sqlite3.Connection, record: RunRecord | Single) -> None:
    """Insert or update a record; a run's learners are written apart."""
    table, columns = _COLUMNS[type(record)]
    key, *_ = columns
    values = [getattr(record, name) for name in columns.values()]
    connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}, body) "  # noqa: S608 - constants of this file
        f"VALUES ({'?, ' * len(columns)}?) ON CONFLICT ({key}) DO UPDATE SET body = excluded.body",
        # A diagnosis of the data alone refers to no run.
        (
            *(None if value == "" else value for value in values),
            record.model_dump_json(exclude={"learners"}),
        ),
    )


def write_learners(
    connection: sqlite3.Connection, run_id: str, learners: Iterable[LearnerRecord]
) -> None:
    """Insert or update learners of a run."""
    bodies = [(learner.index, learner.model_dump_json()) for learner in learners]
    # One statement for all: after each statement the thread waits for the GIL, which a busy event
    # loop rarely releases.
    connection.execute(
        "INSERT INTO learners (run_id, learner_index, body) "
        "SELECT ?, json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?) "
        "WHERE true ON CONFLICT (run_id, learner_index) DO UPDATE SET body = excluded.body",
        (run_id, json.dumps(bodies, ensure_ascii=False)),
    )


def key_column(kind: type[RecordT]) -> str:
    """The key column of a record type's table."""
    return next(iter(_COLUMNS[kind][1]))


def read(
    connection: sqlite3.Connection,
    kind: type[RecordT],
    problems: list[str],
    where: str = "",
    values: tuple[object, ...] = (),
) -> Iterator[RecordT]:
    """Yield the records that a clause selects, by key; unreadable ones go to `problems`."""
    table, columns = _COLUMNS[kind]
    key = key_column(kind)
    owner = "run_id" if "run_id" in columns else "''"
    query = f"SELECT ifnull({owner}, ''), {key}, body FROM {table} {where or f'ORDER BY {key}'}"  # noqa: S608
    for run_id, row_key, body in connection.execute(query, values):
        of_run = f" of run {run_id}" if run_id and kind is not RunRecord else ""
        what = kind.__name__.removesuffix("Record").lower()
        yield from _parsed(kind, body, f"{what} {row_key}{of_run}", problems)


def read_runs(
    connection: sqlite3.Connection, problems: list[str], ids: Collection[str] | None = None
) -> Iterator[RunRecord]:
    """Yield runs (those of `ids`, or all) with their learners, oldest first; see `read`."""
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
    order = f"{which} ORDER BY created_at, run_id"
    for run in read(connection, RunRecord, problems, order, values):
        yield run.changed(learners=tuple(learners.get(run.run_id, ())))


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
    for row in connection.execute(_SUMMARIES):
        run_id, name, request_id, created_at, state, ended_at, fingerprint, inputs = row
        try:
            yield RunSummary(
                run_id,
                name,
                request_id,
                created_at,
                RunState(state),
                ended_at,
                same(fingerprint),
                None if inputs is None else inputs_of(inputs),
            )
        except ValueError as error:
            problems.append(f"the record of run {run_id} cannot be read: {str(error)[:500]}")


_INPUTS: TypeAdapter[InputFormat] = TypeAdapter(InputFormat)
_SUMMARIES = """
    SELECT run_id, name, request_id, created_at,
        json_extract(body, '$.state'), json_extract(body, '$.ended_at'),
        json_extract(body, '$.fingerprint'), json_extract(body, '$.inputs')
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
