"""What jobs run in, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.settings import ComputeSettings


def compute_settings(state_dir: Path) -> ComputeSettings:
    """Those of a coordinator of the digits."""
    return ComputeSettings(
        state_dir=state_dir,
        data_source="digits",
        image_size=None,
        allowed_modules=(),
        device="cpu",
        max_blob_bytes=2**30,
    )


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """One for a module's jobs, which reports to nobody."""
    return Context(compute_settings(tmp_path_factory.mktemp("state")), report=lambda *_: None)
