"""Resident: what this process holds in memory."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    """What it holds now; where the system does not say, the most that it has held."""
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Kilobytes, but for macOS.
    return most if sys.platform == "darwin" else most * 1024
