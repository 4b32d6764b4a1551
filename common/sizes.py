"""Sizes in words, for errors, logs and tables."""

from __future__ import annotations


def format_bytes(count: int) -> str:
    """A size with its decimal unit: 1234567 is "1.2 MB"."""
    if count < 1000:
        return f"{count} B"
    size, unit = count / 1000, "kB"
    for larger in ("MB", "GB"):
        if size >= 1000:
            size, unit = size / 1000, larger
    return f"{size:.1f} {unit}"
