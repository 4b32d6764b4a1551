"""Contents of a state directory: its records and the blobs that they need; read-only."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import StateError
from lipt.common.states import RunState
from lipt.coordinator.state.records import (
    DiagnosisRecord,
    RunRecord,
    SubsetRecord,
)
from lipt.coordinator.state.schema import KINDS, read, read_runs, require_schema

DATABASE = "lipt.db"
_GIVEN_UP = (RunState.FAILED, RunState.CANCELLED)


@contextmanager
def opened_read_only(directory: Path) -> Iterator[sqlite3.Connection]:
    """Open the directory's database read-only; a StateError if it cannot be read."""
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


def read_records(directory: Path, problems: list[str]) -> Iterator[BaseModel]:
    """Yield the records of one snapshot, runs first; unreadable ones go to `problems`."""
    with opened_read_only(directory) as connection:
        connection.execute("BEGIN")
        schema = int(connection.execute("PRAGMA user_version").fetchone()[0])
        require_schema(schema, str(directory / DATABASE))
        query = "SELECT run_id FROM runs ORDER BY created_at, run_id"
        for (run_id,) in connection.execute(query).fetchall():
            yield from read_runs(connection, problems, [run_id])
        for kind in KINDS:
            yield from read(connection, kind, problems)


@dataclass(frozen=True)
class Need:
    """A blob, and what needs it.

    An optional one is kept where it is there: the weights that a run was given, from which a
    damaged theta* is recomputed. Its size is not on record.
    """

    blob: BlobName
    whose: str
    optional: bool = False


def needs_of(record: BaseModel) -> Iterator[Need]:
    """Yield the blobs that a record needs.

    A run always needs its weights. While learners train, it needs shards and unconfirmed results.
    It needs its learners' results and snapshots unless it failed or was cancelled: strategies on
    training trajectories read them.
    """
    match record:
        case RunRecord():
            yield from _needs_of_run(record)
        case SubsetRecord():
            name = f"subset {record.strategy} ({record.digest[:12]}) of {record.run_id}"
            yield Need(record.blob, name)
        case DiagnosisRecord():
            yield Need(record.blob, f"diagnosis {record.proxy} of {record.run_id or 'the data'}")


def _needs_of_run(run: RunRecord) -> Iterator[Need]:
    if given := run.config.initialization.weights_sha256:
        yield Need(BlobName(given, 0), f"the given weights of run {run.name}", optional=True)
    for name, blob in (("theta*", run.initial_weights), ("theta_p", run.pretrained_weights)):
        if blob is not None:
            yield Need(blob, f"{name} of run {run.name}")
    for learner in run.learners:
        whose = f"of learner {learner.index} of run {run.name}"
        if learner.state.open and not run.state.ended:
            yield Need(learner.shard, f"the shard {whose}")
            for copy in learner.copies:
                for blob in copy.files:
                    yield Need(blob, f"what {copy.worker_name} handed in {whose}")
        if learner.result is not None and run.state not in _GIVEN_UP:
            yield Need(learner.result, f"the result {whose}")
            for number, snapshot in enumerate(learner.snapshots):
                yield Need(snapshot, f"snapshot {number} {whose}")


_DIGEST = re.compile(r"[0-9a-f]{64}")
# A record that is not JSON names no blobs.
_NAMED = """
    SELECT json_extract(body, '$.shard', '$.result', '$.snapshots') FROM learners
    WHERE json_valid(body)
    UNION ALL
    SELECT json_extract(body, '$.initial_weights', '$.pretrained_weights',
        '$.config.initialization.weights_sha256') FROM runs
    WHERE json_valid(body)
    UNION ALL
    SELECT json_extract(body, '$.blob') FROM records
    WHERE kind IN ('subset', 'diagnosis') AND json_valid(body)
"""


def named_digests(directory: Path) -> Iterator[str]:
    """Yield digests that records name, needed or not, with repeats; other blobs are uploads."""
    with opened_read_only(directory) as connection:
        for (named,) in connection.execute(_NAMED):
            yield from _DIGEST.findall(named)
