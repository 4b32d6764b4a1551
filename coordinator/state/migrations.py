"""Migrations: the schema of the database as numbered steps; a released step is never edited.

`PRAGMA user_version` says how many of them a database has seen.
"""

from __future__ import annotations

import sqlite3

from lipt.common.errors import StateError

# A run's body as it is from schema 6 on, of one of before: what its models are given was always an
# image.
RENAMED_INPUTS = "json_remove(json_set(body, '$.inputs', json_extract(body, '$.image')), '$.image')"

MIGRATIONS: tuple[str, ...] = (
    """
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
    """,
    # From here on learners have `refusals`, which an older version would not read.
    """
    CREATE INDEX subsets_by_run ON subsets (run_id);
    """,
    # A diagnosis of the data alone is of no run.
    """
    CREATE TABLE diagnoses (
        diagnosis_key TEXT PRIMARY KEY,
        run_id        TEXT REFERENCES runs (run_id) ON DELETE CASCADE,
        body          TEXT NOT NULL
    ) STRICT;
    """,
    # What the directory was served with: runs of other data than that are held.
    """
    CREATE TABLE data_sets (
        fingerprint TEXT PRIMARY KEY,
        body        TEXT NOT NULL
    ) STRICT;
    """,
    # Digests of the tokens that were given out. From here on learners have `silent_ends`, `party`,
    # `kind` and `copies`, which an older version would not read: it would take a learner that is
    # held back for one that nobody has trained.
    """
    CREATE TABLE tokens (
        token_id TEXT PRIMARY KEY,
        body     TEXT NOT NULL
    ) STRICT;
    """,
    # What a run's models are given is an image no more, but of either kind. From here on runs have
    # `other_target`, which an older version would take for classes, `fitted`, `note`, and in their
    # configuration `learners.frozen`: it would take a learner that lacks what is frozen for a
    # damaged one.
    f"UPDATE runs SET body = {RENAMED_INPUTS};",  # noqa: S608 - nobody else's text
    # From here on learners have `leased_at` and `committed_at`, and runs `traceparent`, which an
    # older version would not read.
    """
    SELECT 1;
    """,
)


def migrate(connection: sqlite3.Connection, migrations: tuple[str, ...] = MIGRATIONS) -> int:
    """Bring a database to the newest schema, one transaction per step.

    Returns:
        How many steps were taken.

    Raises:
        StateError: the database was written by a newer version.
    """
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(migrations):
        raise StateError(
            f"the state has schema {version}, this version knows up to {len(migrations)}: "
            "it was written by a newer lipt. Update this one, or use another --state-dir."
        )
    for number, script in enumerate(migrations[version:], start=version + 1):
        try:
            connection.executescript(f"BEGIN; {script}; PRAGMA user_version = {number}; COMMIT;")
        except sqlite3.Error:
            connection.execute("ROLLBACK")
            raise
    return len(migrations) - version
