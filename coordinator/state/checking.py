"""State check: is a directory whole? Every record, every reference, every digest."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from lipt.common.blobs.blob import BlobName
from lipt.common.errors import InvalidBlobNameError
from lipt.common.states import LearnerState, RunState
from lipt.common.subsets import packed_sizes
from lipt.coordinator.state.contents import Contents, open_read_only, read_contents
from lipt.coordinator.state.needs import needed_blobs
from lipt.coordinator.state.pausing import collection_paused
from lipt.coordinator.state.records import DiagnosisRecord, RunRecord, SubsetRecord


@dataclass(frozen=True)
class Checked:
    """What was looked at, a sentence per fault, and one per run that waits for its own data."""

    num_runs: int
    num_subsets: int
    num_diagnoses: int
    num_blobs: int
    num_bytes: int
    problems: tuple[str, ...]
    held: tuple[str, ...]


def check_state(directory: Path) -> Checked:
    """Read everything in a state directory and compare it with what it should be.

    Nothing is changed, and a coordinator may serve the directory meanwhile. Every
    blob's content is hashed, so that this reads all of it once.

    Raises:
        StateError: there is no state, or a database that cannot be read at all.
    """
    problems = [*_database_problems(directory)]
    # What the records need is there already, and is not removed before it was looked at.
    with collection_paused(directory):
        contents = read_contents(directory)
        blobs = _read_blobs(directory, problems)
    problems += [*contents.problems, *_record_problems(contents)]
    for need in needed_blobs(contents):
        if blobs.get(need.blob.sha256) != need.blob.size_bytes:
            problems.append(f"blob {need.blob.sha256} is not there, {need.whose} needs it")
    return Checked(
        num_runs=len(contents.runs),
        num_subsets=len(contents.subsets),
        num_diagnoses=len(contents.diagnoses),
        num_blobs=len(blobs),
        num_bytes=sum(blobs.values()),
        problems=tuple(problems),
        held=tuple(_held_runs(contents)),
    )


def _read_blobs(directory: Path, problems: list[str]) -> dict[str, int]:
    """The sizes of all blobs that are whole, by digest; `problems` takes a clause per other one."""
    blobs: dict[str, int] = {}
    for path in sorted((directory / "blobs").glob("*/*")):
        problem = _blob_problem(path)
        if problem is None:
            blobs[path.name] = path.stat().st_size
        else:
            problems.append(problem)
    return blobs


def _database_problems(directory: Path) -> Iterator[str]:
    with closing(open_read_only(directory)) as connection:
        try:
            for (line,) in connection.execute("PRAGMA integrity_check"):
                if line != "ok":
                    yield f"the database is damaged: {line}"
            for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check"):
                yield f"row {row} of {table} belongs to no row of {parent}"
        except sqlite3.Error as error:
            yield f"the database is damaged: {error}"


def _record_problems(contents: Contents) -> Iterator[str]:
    known = {run.run_id: run.fingerprint for run in contents.runs}
    for run in contents.runs:
        yield from _run_problems(run)
    for subset in contents.subsets:
        yield from _subset_problems(subset, known)
    for diagnosis in contents.diagnoses:
        yield from _diagnosis_problems(diagnosis, known)


def _run_problems(run: RunRecord) -> Iterator[str]:
    indices = [learner.index for learner in run.learners]
    if indices != list(range(len(indices))):
        yield f"run {run.name} has learners {indices}: some are missing"
    if run.state is RunState.READY and run.pretrained_weights is None:
        yield f"run {run.name} is ready and has no theta_p"
    begun = run.state in (RunState.TRAINING, RunState.MERGING, RunState.READY)
    if begun and (run.initial_weights is None or run.inputs is None):
        yield f"run {run.name} is {run.state} and has no theta*"
    if begun and len(indices) != run.config.learners.num_learners:
        yield (
            f"run {run.name} has {len(indices)} learners, its configuration says "
            f"{run.config.learners.num_learners}"
        )
    for learner in run.learners:
        if (learner.state is LearnerState.DONE) != (learner.result is not None):
            yield f"learner {learner.index} of run {run.name} is {learner.state}, its result is not"


def _subset_problems(subset: SubsetRecord, known: Mapping[str, str]) -> Iterator[str]:
    name = f"subset {subset.key[:12]} of run {subset.run_id}"
    if subset.run_id not in known:
        yield f"{name}: there is no such run"
    elif subset.fingerprint != known[subset.run_id]:
        yield f"{name}: it is of the data {subset.fingerprint}, its run of {known[subset.run_id]}"
    if subset.blob.size_bytes not in packed_sizes(subset.num_examples):
        yield (f"{name}: {subset.num_examples} examples do not take {subset.blob.size_bytes} bytes")


def _diagnosis_problems(diagnosis: DiagnosisRecord, known: Mapping[str, str]) -> Iterator[str]:
    if diagnosis.run_id and diagnosis.run_id not in known:
        yield f"diagnosis {diagnosis.key[:12]} of run {diagnosis.run_id}: there is no such run"


def _held_runs(contents: Contents) -> Iterator[str]:
    """What is no fault: runs of other data than the directory was served with last."""
    served = contents.served
    sources = {one.fingerprint: one.source for one in contents.data}
    for run in contents.runs:
        given_up = run.state in (RunState.FAILED, RunState.CANCELLED)
        if given_up or not served or run.fingerprint in {one.fingerprint for one in served}:
            continue
        source = sources.get(run.fingerprint)
        data = f"{source} ({run.fingerprint})" if source else run.fingerprint
        what = "only gives what is stored" if run.state is RunState.READY else "is held"
        yield (
            f"run {run.name} ({run.state}) {what}: it is of {data}, and the directory was last "
            f"served with {served[0].source} ({', '.join(one.fingerprint for one in served)}). "
            "Start the coordinator with the run's own data"
        )


def _blob_problem(path: Path) -> str | None:
    shown = Path(*path.parts[-3:])
    try:
        name = BlobName(path.name, path.stat().st_size)
    except InvalidBlobNameError:
        return f"{shown} is no blob: its name is no digest"
    if path.parent.name != path.name[:2]:
        return f"{shown} is in the wrong folder"
    try:
        found = BlobName.of_file(path)
    except OSError as error:
        return f"{shown} cannot be read: {error.strerror}"
    if found != name:
        return f"{shown} is damaged: its content has the digest {found.sha256}"
    return None
