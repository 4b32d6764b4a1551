"""Database schema: one row per record, JSON in `body`, version in `PRAGMA user_version`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

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

# The kind of each record, and its field that is the key.
KINDS: dict[type[BaseModel], tuple[str, str]] = {
    SubsetRecord: ("subset", "key"),
    DiagnosisRecord: ("diagnosis", "key"),
    DataRecord: ("data", "fingerprint"),
    TokenRecord: ("token", "token_id"),
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


def write(connection: sqlite3.Connection, record: BaseModel) -> None:
    """Insert or update a record that is neither a run nor a learner."""
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
    """Insert or update a run and some of its learners."""
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
    for run_id, *names, state, ended_at, fingerprint, inputs in connection.execute(_SUMMARIES):
        name, request_id, created_at = names
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
