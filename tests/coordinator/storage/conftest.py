"""The records of the state's tests, of which some blobs are needed and others are not."""

from __future__ import annotations

from tests.coordinator.state.conftest import state

__all__ = ["state"]
