"""Weights as files: safetensors, dense or sparse, checked before use.

This module checks the header, without importing torch. Other formats are never opened: unpickling
runs code.
"""

from __future__ import annotations

from pathlib import Path

from lipt.common.errors import WeightsError

LENGTH_BYTES = 8


def require_safetensors(source: bytes | Path) -> None:
    """Refuse content, or a file, without the start of safetensors."""
    if isinstance(source, bytes):
        values_begin(source[: LENGTH_BYTES + 1], len(source), "the content")
        return
    with source.open("rb") as file:
        start = file.read(LENGTH_BYTES + 1)
    values_begin(start, source.stat().st_size, str(source))


def values_begin(start: bytes, num_bytes: int, label: str) -> int:
    """The offset of a file's values."""
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if LENGTH_BYTES + length > num_bytes:
        raise malformed(label, f"its header of {length} bytes does not fit {num_bytes} bytes")
    if start[LENGTH_BYTES:] != b"{":
        raise malformed(label, "its header is not a JSON object")
    return LENGTH_BYTES + length


def malformed(label: str, why: str) -> WeightsError:
    """The error for a file that is not safetensors, or inconsistent."""
    return WeightsError(
        f"{label} is not a safetensors file: {why}. "
        "Write it with safetensors.torch.save_file(model.state_dict(), PATH)."
    )
