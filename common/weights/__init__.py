"""Weights as files: safetensors, dense or sparse, checked before use.

This module checks the header, without importing torch. Other formats are never opened: unpickling
runs code.
"""

from __future__ import annotations

from pathlib import Path

from lipt.common.errors import WeightsError

LENGTH_BYTES = 8

_PICKLE = "a pickle, which is never opened here, for it could run any code. "
_CONVERT = (
    "Convert it where you trust it: safetensors.torch.save_file("
    "torch.load(PATH, weights_only=True), 'weights.safetensors')."
)
_FROM_NUMPY = (
    "Convert it: safetensors.numpy.save_file({NAME: numpy.load(PATH)}, 'weights.safetensors')."
)

# Pickle protocols 0 and 1 have no magic; torch.save never wrote them.
_FOREIGN = {
    **{bytes([0x80, protocol]): _PICKLE + _CONVERT for protocol in range(2, 6)},
    b"PK\x03\x04": f"a zip archive, as torch.save and numpy write them: {_PICKLE}{_CONVERT}",
    b"\x93NUMPY": f"a numpy file, not safetensors. {_FROM_NUMPY}",
    b"\x89HDF": "an HDF5 file, not safetensors. Write its tensors with safetensors.numpy.",
    b"\x1f\x8b": "compressed with gzip. Uncompress it first.",
}


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
    fits = LENGTH_BYTES + length <= num_bytes
    # Checked first: a header of 640 bytes resembles a pickle.
    if fits and start[LENGTH_BYTES:] == b"{":
        return LENGTH_BYTES + length
    foreign = next((text for magic, text in _FOREIGN.items() if start.startswith(magic)), None)
    if foreign:
        raise WeightsError(f"{label} is {foreign}")
    if fits:
        raise malformed(label, "its header is not a JSON object")
    raise malformed(label, f"its header of {length} bytes does not fit {num_bytes} bytes")


def malformed(label: str, why: str) -> WeightsError:
    """The error for a file that is not safetensors, or inconsistent."""
    return WeightsError(
        f"{label} is not a safetensors file: {why}. "
        "Write it with safetensors.torch.save_file(model.state_dict(), PATH)."
    )
