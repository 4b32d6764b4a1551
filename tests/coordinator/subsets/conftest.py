"""Answers of a coordinator whose jobs a test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import TypeAlias

import pytest

from lipt.common.blobs.store import BlobStore
from lipt.common.config.run_config import RunConfig
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.database import Database
from lipt.coordinator.subsets.answers import Answers
from tests.coordinator.fakes import DATA, FakeCompute

MakeAnswers: TypeAlias = Callable[..., Answers]


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path, max_blob_bytes=2**20)


@pytest.fixture
async def make_answers(database: Database, blobs: BlobStore) -> AsyncIterator[MakeAnswers]:
    """Makes the answers of another coordinator of the same state."""
    made: list[Answers] = []
    times = count(1.0)

    def make(store: RunStore, compute: FakeCompute, backbone: str | None = None) -> Answers:
        answers = Answers(
            store,
            database,
            blobs,
            compute.queue,
            DATA,
            defaults=RunConfig(model="resnet8"),
            wall_clock=times.__next__,
            linger_seconds=60.0,
            backbone=backbone,
        )
        made.append(answers)
        return answers

    yield make
    for answers in made:
        await answers.stop()
