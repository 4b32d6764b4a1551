"""Schema of the database: one row per record, its JSON in `body`.

`PRAGMA user_version` is its number; a directory with another one is refused.
"""

from __future__ import annotations

import sqlite3

from lipt.common.errors import StateError

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


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty database, all or none; keep those of this schema.

    Raises:
        StateError: the database has another schema.
    """
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
    """Refuse a database of another schema.

    Raises:
        StateError: `found` is another one.
    """
    if found != SCHEMA:
        raise StateError(
            f"{what} has schema {found}, and this version knows {SCHEMA}. Use the lipt that wrote "
            "it, or another --state-dir."
        )
