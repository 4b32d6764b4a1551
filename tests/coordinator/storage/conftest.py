from __future__ import annotations

from tests.coordinator.dispatch.conftest import bench
from tests.coordinator.state.conftest import state

__all__ = ["bench", "state"]
