"""Maintenance of a state directory: its contents, check, garbage collection and backup."""

from __future__ import annotations

import glob
import os
import re
import shutil
import sqlite3
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.files import (
    directory_lock,
    make_directory,
    remove_stale_temporaries,
    state_errors,
    sync,
)
from lipt.common.blobs.store import Expiry, StoredFile
from lipt.common.errors import InvalidRequestError, StateError
from lipt.common.states import RunState
from lipt.common.subsets import packed_sizes
from lipt.coordinator.state.database import (
    KINDS,
    prepare,
    read,
    read_run,
    read_text,
    require_schema,
)
from lipt.coordinator.state.files import StateLock, collection_paused, make_private_file
from lipt.coordinator.state.records import (
    DiagnosisRecord,
    MixtureRecord,
    RunRecord,
    SubsetRecord,
)

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
            connection.text_factory = read_text
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
            if (run := read_run(connection, problems, run_id)) is not None:
                yield run
        for kind in KINDS:
            yield from read(connection, kind, problems)


@dataclass(frozen=True)
class NeededBlob:
    """A blob, and what needs it."""

    blob: BlobName
    whose: str
    # May be missing, and its size is not on record: weights that a damaged theta* is made of again.
    optional: bool = False


def needs_of(record: BaseModel) -> Iterator[NeededBlob]:
    """Yield the blobs that a record needs."""
    match record:
        case RunRecord():
            yield from _needs_of_run(record)
        case SubsetRecord():
            name = f"subset {record.strategy} ({record.digest[:12]}) of {record.run_id}"
            yield NeededBlob(record.blob, name)
        case DiagnosisRecord():
            yield NeededBlob(
                record.blob, f"diagnosis {record.proxy} of {record.run_id or 'the data'}"
            )
        case MixtureRecord():
            yield NeededBlob(record.blob, f"mixture {record.key[:12]} of {record.run_id}")


def _needs_of_run(run: RunRecord) -> Iterator[NeededBlob]:
    if given := run.config.initialization.weights_sha256:
        yield NeededBlob(BlobName(given, 0), f"the given weights of run {run.name}", optional=True)
    yield from _named(run.initial_weights, f"theta* of run {run.name}")
    yield from _named(run.pretrained_weights, f"theta_p of run {run.name}")
    for learner in run.learners:
        whose = f"of learner {learner.index} of run {run.name}"
        if learner.state.open and not run.state.ended:
            yield from _named(learner.shard, f"the shard {whose}")
            for copy in learner.unconfirmed:
                for blob in copy.result.files:
                    yield NeededBlob(blob, f"result of {copy.holder.worker_name} {whose}")
        # Strategies on training trajectories read them, also after the run.
        if learner.result is not None and run.state not in _GIVEN_UP:
            yield NeededBlob(learner.result.blob, f"the result {whose}")
            for number, snapshot in enumerate(learner.result.snapshots):
                yield NeededBlob(snapshot, f"snapshot {number} {whose}")


def _named(blob: BlobName | None, whose: str) -> Iterator[NeededBlob]:
    if blob is not None:
        yield NeededBlob(blob, whose)


_DIGEST = re.compile(r"[0-9a-f]{64}")
# A record that is not JSON names no blobs.
_NAMED = """
    SELECT json_extract(body, '$.shard', '$.status.result.blob', '$.status.result.snapshots',
        '$.unconfirmed') FROM learners WHERE json_valid(body)
    UNION ALL
    SELECT json_extract(body, '$.initial_weights', '$.pretrained_weights',
        '$.config.initialization.weights_sha256') FROM runs
    WHERE json_valid(body)
    UNION ALL
    SELECT json_extract(body, '$.blob') FROM records WHERE json_valid(body)
"""


def named_digests(directory: Path) -> Iterator[str]:
    """Yield digests that records name, needed or not, with repeats; other blobs are uploads."""
    with opened_read_only(directory) as connection:
        for (named,) in connection.execute(_NAMED):
            yield from _DIGEST.findall(str(named))


@dataclass(frozen=True)
class Checked:
    """Counts of a check, and one sentence per problem."""

    num_runs: int
    num_subsets: int
    num_diagnoses: int
    num_mixtures: int
    num_blobs: int
    # Blobs that no record names: uploads, or files newer than the database.
    num_unnamed: int
    num_bytes: int
    problems: tuple[str, ...]


def check_state(directory: Path) -> Checked:
    """Verify every record, reference and digest; read-only, also while a coordinator runs."""
    problems = [*_database_problems(directory)]
    counts: Counter[type] = Counter()
    needs: list[NeededBlob] = []
    fingerprints: dict[str, str] = {}
    # No needed blob may be removed before it is checked.
    with collection_paused(directory):
        for record in read_records(directory, problems):
            counts[type(record)] += 1
            needs += needs_of(record)
            problems += _record_problems(record, fingerprints)
        blobs = _read_blobs(directory, problems)
        unnamed = blobs.keys() - set(named_digests(directory))
    problems += (
        f"blob {need.blob.sha256} is not there, {need.whose} needs it"
        for need in needs
        if not need.optional and blobs.get(need.blob.sha256) != need.blob.size_bytes
    )
    return Checked(
        num_runs=counts[RunRecord],
        num_subsets=counts[SubsetRecord],
        num_diagnoses=counts[DiagnosisRecord],
        num_mixtures=counts[MixtureRecord],
        num_blobs=len(blobs),
        num_unnamed=len(unnamed),
        num_bytes=sum(blobs.values()),
        problems=tuple(problems),
    )


def _database_problems(directory: Path) -> Iterator[str]:
    with opened_read_only(directory) as connection:
        try:
            for (line,) in connection.execute("PRAGMA integrity_check"):
                if line != "ok":
                    yield f"the database is damaged: {line}"
            for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
                yield f"row {row} of {table} belongs to no row of {parent}"
            for name in sorted(_objects(connection) ^ _own_objects()):
                yield f"the database has {name}, or lacks it: it is not as this version makes it"
        except sqlite3.Error as error:
            yield f"the database is damaged: {error}"


def _objects(connection: sqlite3.Connection) -> set[str]:
    query = "SELECT type || ' ' || name || ': ' || ifnull(sql, '') FROM sqlite_schema"
    return {text for (text,) in connection.execute(query)}


def _own_objects() -> set[str]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        prepare(connection)
        return _objects(connection)


def _read_blobs(directory: Path, problems: list[str]) -> dict[str, int]:
    """Sizes of all intact blobs, by digest; `problems` gets the others."""
    blobs: dict[str, int] = {}
    for path in sorted((directory / "blobs").glob("*/*")):
        problem = _blob_problem(path)
        if problem is None:
            blobs[path.name] = path.stat().st_size
        else:
            problems.append(f"{Path(*path.parts[-3:])} {problem}")
    return blobs


def _blob_problem(path: Path) -> str | None:
    try:
        name = BlobName(path.name, path.stat().st_size)
    except InvalidRequestError:
        return "is no blob: its name is no digest"
    if path.parent.name != path.name[:2]:
        return "is in the wrong folder"
    try:
        actual = BlobName.of_file(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if actual != name:
        return f"is damaged: its content has the digest {actual.sha256}"
    return None


def _record_problems(record: BaseModel, fingerprints: dict[str, str]) -> Iterator[str]:
    """Yield problems of a record; `fingerprints` has the data of all earlier runs."""
    match record:
        case RunRecord():
            fingerprints[record.run_id] = record.fingerprint
        case SubsetRecord():
            yield from _subset_problems(record, fingerprints)
        case DiagnosisRecord() if record.run_id and record.run_id not in fingerprints:
            yield f"diagnosis {record.key[:12]} of run {record.run_id}: there is no such run"
        case MixtureRecord() if record.run_id not in fingerprints:
            yield f"mixture {record.key[:12]} of run {record.run_id}: there is no such run"


def _subset_problems(subset: SubsetRecord, known: Mapping[str, str]) -> Iterator[str]:
    name = f"subset {subset.key[:12]} of run {subset.run_id}"
    if subset.run_id not in known:
        yield f"{name}: there is no such run"
    elif subset.fingerprint != known[subset.run_id]:
        yield f"{name}: it is of the data {subset.fingerprint}, its run of {known[subset.run_id]}"
    if subset.blob.size_bytes not in packed_sizes(subset.num_examples, subset.num_classes):
        yield f"{name}: {subset.num_examples} examples do not take {subset.blob.size_bytes} bytes"


@dataclass(frozen=True)
class Collected:
    """Removed blobs and partial uploads; `needed` bytes and young (`spare`) ones were kept."""

    needed_bytes: int = 0
    spare_bytes: int = 0
    num_spared: int = 0
    blobs: tuple[StoredFile, ...] = ()
    parts: tuple[StoredFile, ...] = ()


def collect(
    directory: Path, expiry: Expiry, *, unused_since: float, cut_since: float, dry_run: bool = False
) -> Collected:
    """Remove blobs that no record needs, unused since a time, and uploads that were cut before one.

    Times are seconds since 1970. All records are read before the first removal.
    """
    needs, _ = _read_needs(directory)
    needed_bytes = 0
    spared: list[StoredFile] = []
    blobs: list[StoredFile] = []
    for digest in expiry.digests():
        # The sizes of needed blobs come from records, so few files are read.
        need = needs.get(digest)
        blob = None if need and not need.optional else expiry.blob(digest)
        if need:
            needed_bytes += (blob or need.blob).size_bytes
        elif blob is None:
            continue
        elif dry_run:
            (blobs if blob.used_at <= unused_since else spared).append(blob)
        else:
            removed = expiry.remove_blob(digest, before=unused_since)
            (blobs if removed else spared).append(blob)
    parts = []
    num_parts = 0
    for part in expiry.parts():
        num_parts += 1
        old = part.used_at <= cut_since
        if old and (dry_run or expiry.remove_part(part.name, before=cut_since)):
            parts.append(part)
    return Collected(
        needed_bytes=needed_bytes,
        spare_bytes=sum(blob.size_bytes for blob in spared),
        num_spared=len(spared) + num_parts - len(parts),
        blobs=tuple(blobs),
        parts=tuple(parts),
    )


def _read_needs(directory: Path) -> tuple[dict[str, NeededBlob], int]:
    """Needed blobs of all records, by digest, and the number of runs."""
    problems: list[str] = []
    needs: dict[str, NeededBlob] = {}
    num_runs = 0
    for record in read_records(directory, problems):
        num_runs += isinstance(record, RunRecord)
        for need in needs_of(record):
            if not need.optional or need.blob.sha256 not in needs:
                needs[need.blob.sha256] = need
    if problems:
        raise StateError(
            f"nothing was done, for what is needed is not known: {problems[0]}. "
            "See lipt state check, and restore a backup."
        )
    return needs, num_runs


def collect_garbage(
    directory: Path, *, min_age_seconds: float, now: float, dry_run: bool = False
) -> Collected:
    """Remove unneeded old files of a state directory; no coordinator may be using it."""
    with opened_read_only(directory):  # before the lock, which would create a missing directory
        pass
    try:
        lock = StateLock(directory)
    except StateError as error:
        raise StateError(
            f"{error} While a coordinator serves it collects by itself: files without use for "
            "storage.unused_hours goes."
        ) from None
    try:
        lock.describe("collecting garbage")
        before = now - min_age_seconds
        expiry = Expiry(directory)
        with state_errors(directory):
            if not dry_run:
                remove_stale_temporaries(directory / "uploads")
                _remove_half_written(directory / "signals", before)
            return collect(
                directory, expiry, unused_since=before, cut_since=before, dry_run=dry_run
            )
    finally:
        lock.release()


def _remove_half_written(folder: Path, before: float) -> None:
    # Links are not followed: their targets are not part of the state.
    for at, _, names in () if folder.is_symlink() else os.walk(folder):
        for path in (Path(at) / name for name in names if ".tmp" in name):
            stats = path.lstat()
            if stat.S_ISREG(stats.st_mode) and stats.st_mtime <= before:
                path.unlink()


@dataclass(frozen=True)
class BackedUp:
    """Numbers of runs and blobs in a backup."""

    num_runs: int
    num_blobs: int
    num_bytes: int


def back_up(directory: Path, destination: Path) -> BackedUp:
    """Copy all acknowledged state of a directory, also while a coordinator uses it.

    The database is copied first, as one consistent snapshot. Its blobs were durable before, never
    change, and are not removed meanwhile. Copies are verified by digest, and share no later damage.
    The destination appears complete, at the end; what killed backups to it left is removed.
    """
    _require_apart(directory, destination)
    with (
        opened_read_only(directory) as source,
        state_errors(destination),
        collection_paused(directory),
    ):
        if destination.is_dir() and any(destination.iterdir()):
            raise StateError(
                f"{destination} is not empty. Give a directory that does not exist yet."
            )
        parent = destination.absolute().parent
        make_directory(parent)
        prefix = f".{destination.name}.lipt-backup-"
        _remove_abandoned(parent, prefix)
        partial = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            with directory_lock(partial, exclusive=True):
                _copy_database(source, partial / DATABASE)
                made = _copy_blobs(directory, partial)
                sync(partial)
                partial.rename(destination)
                sync(parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return made


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for left in parent.glob(f"{glob.escape(prefix)}*"):
        with directory_lock(left, exclusive=True, wait=False) as abandoned:
            if abandoned:
                shutil.rmtree(left, ignore_errors=True)


def _require_apart(directory: Path, destination: Path) -> None:
    resolved = destination.resolve()
    # Compared by inode: a directory may be mounted twice.
    if any(
        path.exists() and directory.exists() and path.samefile(directory)
        for path in (resolved, *resolved.parents)
    ):
        raise StateError(
            f"{destination} lies in the state directory {directory}, and would be lost with it. "
            "Give a directory elsewhere, on another disk if there is one."
        )


def _copy_database(source: sqlite3.Connection, path: Path) -> None:
    try:
        make_private_file(path)
        with closing(sqlite3.connect(path)) as target:
            # All pages in one step: writers wait no longer than for a reader.
            source.backup(target, pages=-1)
            # A single file, readable on read-only media.
            target.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise StateError(
            f"the database could not be copied to {path.parent}: {error}. Free space there, or "
            "choose another disk; the state itself is unchanged."
        ) from None
    sync(path)


def _copy_blobs(directory: Path, partial: Path) -> BackedUp:
    needs, num_runs = _read_needs(partial)
    num_bytes = num_blobs = 0
    for sha256, need in sorted(needs.items()):
        original = directory / "blobs" / sha256[:2] / sha256
        if not original.is_file():
            if need.optional:
                continue
            raise StateError(
                f"blob {sha256} is not there, {need.whose} needs it. See lipt state check."
            )
        copy = partial / "blobs" / sha256[:2] / sha256
        make_directory(copy.parent)
        _copy(original, copy)
        num_blobs += 1
        num_bytes += copy.stat().st_size
    for folder in (partial / "blobs").glob("*"):
        sync(folder)
    return BackedUp(num_runs, num_blobs, num_bytes)


def _copy(original: Path, copy: Path) -> None:
    make_private_file(copy)
    shutil.copyfile(original, copy)
    sync(copy)
    if BlobName.of_file(copy).sha256 != original.name:
        raise StateError(
            f"{original} is damaged: its content has another digest. See lipt state check."
        )
