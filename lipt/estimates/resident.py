"""Resident: what this process holds in memory."""

from __future__ import annotations

import os
import resource
import sys

from lipt.coordinator.compute.memory import resident


def resident_bytes() -> int:
    """What it holds now; where the system does not say, the most that it has held."""
    found = resident(os.getpid())
    if found is not None:
        return found.now_bytes
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Kilobytes, but for macOS.
    return most if sys.platform == "darwin" else most * 1024
