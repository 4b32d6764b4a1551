"""Compute jobs on the digits, which need no network."""

from __future__ import annotations

from pathlib import Path

from lipt.coordinator.compute.context import Context
from lipt.coordinator.compute.settings import ComputeSettings


def digits_settings(state_dir: Path) -> ComputeSettings:
    """What a compute process is started with."""
    return ComputeSettings(
        state_dir=state_dir,
        data_source="digits",
        image_size=None,
        allowed_modules=(),
        device="cpu",
        max_blob_bytes=2**30,
    )


def digits_context(state_dir: Path) -> Context:
    """What a job is given; nobody is told how far it is."""
    return Context(digits_settings(state_dir), report=lambda *_: None)
