"""Compute settings: what the compute process needs of the coordinator's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ComputeSettings:
    """Sent to the child once, when it is started."""

    state_dir: Path
    data_source: str
    image_size: int | None
    allowed_modules: tuple[str, ...]
    device: str
    max_blob_bytes: int
