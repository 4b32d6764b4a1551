"""The state's records, of which some blobs are needed and others are not, and a dispatcher."""

from __future__ import annotations

from tests.coordinator.dispatch.conftest import bench
from tests.coordinator.state.conftest import state

__all__ = ["bench", "state"]
