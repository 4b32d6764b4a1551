"""Records for the coordinator's tests, with only what matters in a test to be said."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import RunRecord
from tests.clock import Clock
from tests.coordinator.made_up_runs import made_up_run


@pytest.fixture
def clock() -> Clock:
    """Seconds that only a test lets pass; not from 0, which is a value like any other."""
    return Clock(100.0)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """A new one, in `tmp_path`/lipt.db."""
    database = Database.open(tmp_path / "lipt.db")
    yield database
    await database.close()


@pytest.fixture
def make_run() -> Callable[..., RunRecord]:
    """A run in TRAINING with `num_learners` queued learners."""
    return made_up_run
