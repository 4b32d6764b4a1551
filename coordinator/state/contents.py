"""State contents: all records of a directory, read without changing it, also while it is served."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

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
from lipt.coordinator.state.schema import require_schema

DATABASE = "lipt.db"

RecordT = TypeVar(
    "RecordT", RunRecord, LearnerRecord, SubsetRecord, DiagnosisRecord, DataRecord, TokenRecord
)
# So many records are a part: few enough to be freed before Python looks for garbage in all
# memory, which stops every thread.
_AT_ONCE = 4


@dataclass(frozen=True)
class Contents:
    """Records, and a clause for each that could not be read."""

    runs: tuple[RunRecord, ...] = ()
    subsets: tuple[SubsetRecord, ...] = ()
    diagnoses: tuple[DiagnosisRecord, ...] = ()
    data: tuple[DataRecord, ...] = ()
    problems: tuple[str, ...] = ()


@contextmanager
def opened_read_only(directory: Path) -> Iterator[sqlite3.Connection]:
    """The directory's database for the block; nothing is written to it.

    Raises:
        StateError: there is none, or it cannot be read.
    """
    path = directory / DATABASE
    if not path.is_file():
        raise StateError(
            f"there is no state in {directory}: it has no {DATABASE}. Give the --state-dir that "
            "a coordinator was started with."
        )
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        ) as connection:
            connection.execute("PRAGMA user_version")
            yield connection
    except sqlite3.Error as error:
        raise StateError(f"{path} cannot be read: {error}. Restore it from a backup.") from None


def read_contents(directory: Path) -> Contents:
    """All records of a state directory; raises as `read_in_parts`."""
    parts = tuple(read_in_parts(directory))
    return Contents(
        runs=tuple(run for part in parts for run in part.runs),
        subsets=tuple(subset for part in parts for subset in part.subsets),
        diagnoses=tuple(diagnosis for part in parts for diagnosis in part.diagnoses),
        data=parts[-1].data,
        problems=parts[-1].problems,
    )


def read_in_parts(directory: Path) -> Iterator[Contents]:
    """All records in one consistent view, a few at a time, so that many take no more memory.

    A part has all problems so far; the last part has the data sets.

    Raises:
        StateError: there is no database, it is damaged, or has another schema.
    """
    problems: list[str] = []
    with opened_read_only(directory) as connection:
        connection.execute("BEGIN")
        schema = int(connection.execute("PRAGMA user_version").fetchone()[0])
        require_schema(schema, str(directory / DATABASE))
        query = "SELECT run_id FROM runs ORDER BY created_at, run_id"
        ids = [run_id for (run_id,) in connection.execute(query)]
        for start in range(0, len(ids), _AT_ONCE):
            runs = read_runs(connection, problems, ids=ids[start : start + _AT_ONCE])
            yield Contents(runs=runs, problems=tuple(problems))
        query = "SELECT run_id, subset_key, body FROM subsets ORDER BY run_id, subset_key"
        for some in _batches(_rows(connection, query, SubsetRecord, problems)):
            yield Contents(subsets=some, problems=tuple(problems))
        query = "SELECT ifnull(run_id, ''), diagnosis_key, body FROM diagnoses ORDER BY 1, 2"
        for of_any in _batches(_rows(connection, query, DiagnosisRecord, problems)):
            yield Contents(diagnoses=of_any, problems=tuple(problems))
        query = "SELECT '', fingerprint, body FROM data_sets ORDER BY fingerprint"
        data = tuple(it for _, it in _rows(connection, query, DataRecord, problems))
        read_tokens(connection, problems)
        yield Contents(data=data, problems=tuple(problems))


def _batches(rows: Iterator[tuple[str, RecordT]]) -> Iterator[tuple[RecordT, ...]]:
    while some := tuple(record for _, (_, record) in zip(range(_AT_ONCE), rows, strict=False)):
        yield some


def read_runs(
    connection: sqlite3.Connection, problems: list[str], *, ids: Collection[str] | None = None
) -> tuple[RunRecord, ...]:
    """Runs with their learners, oldest first; `problems` takes a clause per unreadable record.

    Args:
        connection: of a database.
        problems: is appended to.
        ids: of the runs to read; None for all.
    """
    which = ""
    values: tuple[str, ...] = ()
    if ids is not None:
        which = "WHERE run_id IN (SELECT value FROM json_each(?))"
        values = (json.dumps(sorted(ids)),)
    learners: dict[str, list[LearnerRecord]] = {}
    query = f"SELECT run_id, learner_index, body FROM learners {which} ORDER BY 1, 2"  # noqa: S608
    for run_id, learner in _rows(connection, query, LearnerRecord, problems, values):
        learners.setdefault(run_id, []).append(learner)
    query = f"SELECT run_id, '', body FROM runs {which} ORDER BY created_at, run_id"  # noqa: S608
    return tuple(
        run.changed(learners=tuple(learners.get(run_id, ())))
        for run_id, run in _rows(connection, query, RunRecord, problems, values)
    )


def read_tokens(connection: sqlite3.Connection, problems: list[str]) -> tuple[TokenRecord, ...]:
    """All tokens, oldest first; `problems` as in `read_runs`."""
    query = "SELECT '', token_id, body FROM tokens ORDER BY token_id"
    found = (token for _, token in _rows(connection, query, TokenRecord, problems))
    return tuple(sorted(found, key=lambda token: (token.created_at, token.token_id)))


def read_summaries(connection: sqlite3.Connection, problems: list[str]) -> tuple[RunSummary, ...]:
    """The summaries of all runs, oldest first, taken out of the JSON by SQLite."""
    summaries = []
    # Nearly all runs are of the same few kinds of data: each is parsed, and kept, once.
    same = cache(str)
    inputs_of = cache(_INPUTS.validate_json)
    for row in connection.execute(_SUMMARIES):
        run_id, name, request_id, created_at, state, ended_at, fingerprint, inputs = row
        try:
            summaries.append(
                RunSummary(
                    run_id,
                    name,
                    request_id,
                    created_at,
                    RunState(state),
                    ended_at,
                    same(fingerprint),
                    None if inputs is None else inputs_of(inputs),
                )
            )
        except ValueError as error:
            why = str(error)[:500]
            problems.append(f"the record of run {run_id} cannot be read: {why}")
    return tuple(summaries)


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
    """Refuse to go on without records that cannot be read.

    Raises:
        StateError: there are problems.
    """
    if problems:
        raise StateError(
            f"{next(iter(problems))}. lipt state check names all such records; restore a backup, "
            "or give another --state-dir."
        )


def _rows(
    connection: sqlite3.Connection,
    query: str,
    record: type[RecordT],
    problems: list[str],
    values: tuple[str, ...] = (),
) -> Iterator[tuple[str, RecordT]]:
    for run_id, key, body in connection.execute(query, values):
        try:
            yield run_id, record.model_validate_json(body)
        except (ValidationError, LiptError) as error:
            why = explain(error) if isinstance(error, ValidationError) else str(error)
            what = record.__name__.removesuffix("Record").lower()
            of_run = f"of run {run_id}" if key != "" else run_id
            name = " ".join(filter(None, (what, str(key), of_run if run_id else "")))
            problems.append(f"the record of {name} cannot be read: {why[:500]}")
