from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import InitializationConfig
from lipt.common.errors import UnreadableRunError
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.runs.transitions import done
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import (
    DiagnosisRecord,
    LearnerResult,
    MixtureRecord,
    RunRecord,
    SubsetRecord,
)
from tests.coordinator.made_up_runs import holder, made_up_run, status

NUM_EXAMPLES = 2
# Files of the fixture `state` that no record needs, and some that records need.
SPARE = ["ready shard 0", "ready shard 1", "training shard 0", "uploaded weights"]
SPARE += [f"cancelled {what}" for what in ("shard 0", "shard 1", "result 0", "snapshot 0")]
KEPT = ["ready result 0", "ready snapshot 0", "training shard 1", "training shard 2"]
KEPT += ["training result 0", "cancelled theta*", "ready theta_p", "x" * 24, "given weights"]
KEPT += ["diagnosis of ", "diagnosis of ready", "mixture of ready"]


def execute(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


async def stored_runs(database: Database) -> tuple[RunRecord, ...]:
    """All readable runs, oldest first."""
    runs = list[RunRecord | None]()
    for summary in await database.load_summaries():
        with contextlib.suppress(UnreadableRunError):
            runs.append(database.read_run(summary.run_id))
    return tuple(filter(None, runs))


def subset_of(run_id: str, key: str) -> SubsetRecord:
    return SubsetRecord(
        key=key,
        run_id=run_id,
        strategy="grand",
        num_examples=NUM_EXAMPLES,
        balanced=True,
        fingerprint="f",
        digest="d",
        weights_sha256="w",
        manifest={"budget": 2},
        blob=BlobName.of(b"subset"),
        created_at=1.0,
    )


def diagnosis_of(run_id: str, key: str) -> DiagnosisRecord:
    return DiagnosisRecord(
        key=key,
        run_id=run_id,
        proxy="auto",
        num_examples=NUM_EXAMPLES,
        fingerprint="f" * 64,
        features_sha256="",
        manifest={"seconds": 1.5},
        blob=BlobName.of(b"file"),
        created_at=1.0,
    )


class StateBench:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.blobs = BlobStore(directory, max_blob_bytes=2**20)

    def put(self, text: str) -> BlobName:
        return self.blobs.put_bytes(text.encode())

    def path(self, text: str) -> Path:
        return self.blobs.path(BlobName.of(text.encode()))

    def has(self, text: str) -> bool:
        return self.blobs.has(BlobName.of(text.encode()))

    def with_blobs(self, run: RunRecord, *states: LearnerState) -> RunRecord:
        name = run.run_id
        run = run.changed(initial_weights=self.put(f"{name} theta*"))
        if run.state is RunState.READY:
            run = run.changed(pretrained_weights=self.put(f"{name} theta_p"))
        for index, state in enumerate(states):
            learner = run.learners[index].changed(
                status=status(state), shard=self.put(f"{name} shard {index}")
            )
            if state is LearnerState.DONE:
                result = LearnerResult(
                    blob=self.put(f"{name} result {index}"),
                    snapshots=(self.put(f"{name} snapshot {index}"),),
                )
                learner = done(learner, holder(), result)
            run = run.with_learner(learner)
        return run

    def subset(self, run: RunRecord) -> SubsetRecord:
        blob = self.put("x" * 12 * NUM_EXAMPLES)
        return subset_of(run.run_id, "k" * 64).changed(
            fingerprint=run.fingerprint,
            digest=blob.sha256,
            weights_sha256=self.put("uploaded weights").sha256,
            blob=blob,
        )

    def diagnosis(self, run_id: str = "") -> DiagnosisRecord:
        name = f"diagnosis of {run_id}"
        return diagnosis_of(run_id, name).changed(blob=self.put(name))

    def mixture(self, run_id: str) -> MixtureRecord:
        name = f"mixture of {run_id}"
        return MixtureRecord(
            key=name,
            run_id=run_id,
            fingerprint="f" * 64,
            target_sha256="t" * 64,
            manifest={"seconds": 1.5},
            blob=self.put(name),
            created_at=1.0,
        )


@pytest.fixture
async def state(tmp_path: Path) -> StateBench:
    """One run that is ready, with a subset; one in training; one that was cancelled.

    The first has a diagnosis and a mixture, and the data has a diagnosis.
    """
    bench = StateBench(tmp_path / "state")
    database = Database.open(bench.directory / "lipt.db")
    done, leased, queued = LearnerState.DONE, LearnerState.LEASED, LearnerState.QUEUED
    ready = bench.with_blobs(
        made_up_run("ready", num_learners=2, state=RunState.READY), done, LearnerState.DROPPED
    )
    training = bench.with_blobs(made_up_run("training"), done, leased, queued)
    given = InitializationConfig(weights_sha256=bench.put("given weights").sha256)
    config = training.config.model_copy(update={"initialization": given})
    training = training.changed(config=config)
    cancelled = bench.with_blobs(
        made_up_run("cancelled", num_learners=2, state=RunState.CANCELLED), done, leased
    )
    for run in (ready, training, cancelled):
        await database.save_run(run, run.learners)
    await database.save(bench.subset(ready))
    await database.save(bench.diagnosis(), bench.diagnosis("ready"), bench.mixture("ready"))
    await database.close()
    return bench
