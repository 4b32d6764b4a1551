"""State contents: all records of a directory, read without changing it, also while it is served."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from lipt.common.config.values import explain
from lipt.common.errors import LiptError, StateError
from lipt.coordinator.state.records import (
    DataRecord,
    DiagnosisRecord,
    LearnerRecord,
    RunRecord,
    SubsetRecord,
    TokenRecord,
)
from lipt.coordinator.state.schema import require_schema

DATABASE = "lipt.db"

RecordT = TypeVar(
    "RecordT", RunRecord, LearnerRecord, SubsetRecord, DiagnosisRecord, DataRecord, TokenRecord
)
ItemT = TypeVar("ItemT")
_SUBSETS = "SELECT run_id, subset_key, body FROM subsets ORDER BY run_id, subset_key"
_DATA = "SELECT '', fingerprint, body FROM data_sets ORDER BY fingerprint"
_DIAGNOSES = "SELECT ifnull(run_id, ''), diagnosis_key, body FROM diagnoses ORDER BY 1, 2"
# So many records are a part: few enough for what they are made of to be gone before Python looks
# for garbage in all memory, which holds every thread up.
_AT_ONCE = 4


@dataclass(frozen=True)
class Contents:
    """All records, and what is wrong with those that could not be read."""

    schema: int
    runs: tuple[RunRecord, ...] = ()
    subsets: tuple[SubsetRecord, ...] = ()
    diagnoses: tuple[DiagnosisRecord, ...] = ()
    data: tuple[DataRecord, ...] = ()
    tokens: tuple[TokenRecord, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def served(self) -> tuple[DataRecord, ...]:
        """What a coordinator served last, under all its fingerprints; nothing where not known."""
        last = max((one.served_at for one in self.data), default=None)
        return tuple(one for one in self.data if one.served_at == last)


def open_read_only(directory: Path) -> sqlite3.Connection:
    """The directory's database; nothing is written to it.

    Raises:
        StateError: there is none, or it cannot be opened.
    """
    path = directory / DATABASE
    if not path.is_file():
        raise StateError(
            f"there is no state in {directory}: it has no {DATABASE}. Give the --state-dir that "
            "a coordinator was started with."
        )
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        connection.execute("PRAGMA user_version")
    except sqlite3.Error as error:
        raise StateError(f"{path} cannot be read: {error}. Restore it from a backup.") from None
    return connection


def read_contents(directory: Path) -> Contents:
    """All runs, subsets and diagnoses of a state directory, in one consistent view.

    Raises:
        StateError: there is no database, it is damaged, or of a newer version.
    """
    with _one_view(directory) as (connection, schema):
        return _read(connection, schema)


def read_in_parts(directory: Path) -> Iterator[Contents]:
    """The runs, subsets and diagnoses of `read_contents`, a few at a time, in one consistent view.

    Whoever keeps none of them takes no more memory for many than for few. The newest schema only.

    Raises:
        StateError: as `read_contents`.
    """
    with _one_view(directory) as (connection, schema):
        problems: list[str] = []
        ids = [row[0] for row in connection.execute("SELECT run_id FROM runs")]
        subsets = _rows(connection, _SUBSETS, SubsetRecord, problems)
        diagnoses = _rows(connection, _DIAGNOSES, DiagnosisRecord, problems)
        for some in _batches(ids):
            runs = read_runs(connection, problems, ids=some)
            yield Contents(schema, runs=runs, problems=tuple(problems))
        for of_runs in _batches(it for _, it in subsets):
            yield Contents(schema, subsets=of_runs, problems=tuple(problems))
        for of_any in _batches(it for _, it in diagnoses):
            yield Contents(schema, diagnoses=of_any, problems=tuple(problems))
        yield Contents(schema, problems=tuple(problems))


def _batches(rows: Iterable[ItemT]) -> Iterator[tuple[ItemT, ...]]:
    rows = iter(rows)
    while some := tuple(islice(rows, _AT_ONCE)):
        yield some


@contextmanager
def _one_view(directory: Path) -> Iterator[tuple[sqlite3.Connection, int]]:
    """A connection that sees one state of the database, and the schema that it has."""
    with closing(open_read_only(directory)) as connection:
        try:
            connection.execute("BEGIN")
            schema = int(connection.execute("PRAGMA user_version").fetchone()[0])
            require_schema(schema, str(directory / DATABASE))
            yield connection, schema
        except sqlite3.Error as error:
            raise StateError(
                f"{directory / DATABASE} cannot be read: {error}. Restore it from a backup."
            ) from None


def _read(connection: sqlite3.Connection, schema: int) -> Contents:
    problems: list[str] = []
    runs = read_runs(connection, problems)
    subsets = tuple(it for _, it in _rows(connection, _SUBSETS, SubsetRecord, problems))
    diagnoses = tuple(it for _, it in _rows(connection, _DIAGNOSES, DiagnosisRecord, problems))
    data = tuple(it for _, it in _rows(connection, _DATA, DataRecord, problems))
    tokens = read_tokens(connection, problems)
    return Contents(schema, runs, subsets, diagnoses, data, tokens, tuple(problems))


def read_runs(
    connection: sqlite3.Connection,
    problems: list[str],
    *,
    ids: Collection[str] | None = None,
) -> tuple[RunRecord, ...]:
    """Runs with their learners, oldest first.

    Args:
        connection: a database.
        problems: takes a clause for every record that cannot be read, and is left out.
        ids: whose; None for all.
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
    """All tokens that were given out, oldest first.

    Args:
        connection: a database.
        problems: as in `read_runs`.
    """
    query = "SELECT '', token_id, body FROM tokens ORDER BY token_id"
    found = (token for _, token in _rows(connection, query, TokenRecord, problems))
    return tuple(sorted(found, key=lambda token: (token.created_at, token.token_id)))


def require_readable(problems: list[str]) -> None:
    """Refuse to go on without records that cannot be read.

    Raises:
        StateError: there are such.
    """
    if problems:
        raise StateError(
            f"{problems[0]}. lipt state check names all such records; restore a backup, or "
            "give another --state-dir."
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
            named = f"{what} {key}" if key != "" else what
            whose = f" of run {run_id}" if key != "" else f" {run_id}"
            name = named + (whose if run_id else "")
            problems.append(f"the record of {name} cannot be read: {why[:500]}")
