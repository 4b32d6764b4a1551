from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lipt.coordinator.state.database import Database
from tests.clock import Clock
from tests.coordinator.dispatch.conftest import bench
from tests.coordinator.state.conftest import state

__all__ = ["bench", "clock", "database", "state"]


@pytest.fixture
def clock() -> Clock:
    """Seconds that only a test lets pass; not from 0, which is a value like any other."""
    return Clock(100.0)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database.open(tmp_path / "lipt.db")
    yield database
    await database.close()
