"""Checks a file of weights by its first bytes, before it is uploaded.

The coordinator checks everything again; this saves an upload that it would
refuse, and nothing here imports torch.
"""

from __future__ import annotations

from pathlib import Path

from lipt.common.errors import WeightsError
from lipt.common.weights.magic import foreign_format

# A safetensors file: 8 bytes little-endian header length, then a JSON object.
_LENGTH_BYTES = 8


def require_safetensors(weights: Path | bytes) -> None:
    """Check that a file, or its content, starts as safetensors does.

    Raises:
        WeightsError: it does not; a pickle or another known format is named,
            with how to convert it.
        OSError: the file cannot be read.
    """
    if isinstance(weights, bytes):
        name, size_bytes, start = "the content", len(weights), weights[: _LENGTH_BYTES + 1]
    else:
        name, size_bytes = str(weights), weights.stat().st_size
        with weights.open("rb") as file:
            start = file.read(_LENGTH_BYTES + 1)
    # Asked first: a header of 640 bytes makes a file start like a pickle.
    header_bytes = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if start[_LENGTH_BYTES:] == b"{" and header_bytes <= size_bytes - _LENGTH_BYTES:
        return
    found = foreign_format(start) or (
        "not a safetensors file, or a truncated one. "
        "Write weights with safetensors.torch.save_file(model.state_dict(), PATH)."
    )
    raise WeightsError(f"{name} is {found}")
