"""Names the formats that people offer as weights by mistake, and how to convert each.

None of them is ever opened: unpickling runs what the file says.
"""

from __future__ import annotations

_PICKLE = "a pickle, which can run any code when it is opened, so it is not. "
_CONVERT = (
    "Convert it where you trust it: safetensors.torch.save_file("
    "torch.load(PATH, weights_only=True), 'weights.safetensors')."
)
_FROM_NUMPY = (
    "Convert it: safetensors.numpy.save_file({NAME: numpy.load(PATH)}, 'weights.safetensors')."
)

# Protocol 0 and 1 pickles have no magic; torch.save never wrote those.
_FOREIGN = {
    **{bytes([0x80, protocol]): _PICKLE + _CONVERT for protocol in range(2, 6)},
    b"PK\x03\x04": f"a zip archive, as torch.save and numpy write them: {_PICKLE}{_CONVERT}",
    b"\x93NUMPY": f"a numpy file, not safetensors. {_FROM_NUMPY}",
    b"\x89HDF": "an HDF5 file, not safetensors. Write its tensors with safetensors.numpy.",
    b"\x1f\x8b": "compressed with gzip. Uncompress it first.",
}


def foreign_format(start: bytes) -> str | None:
    """What a file is that begins like this, and the remedy; None for an unknown one."""
    return next((text for magic, text in _FOREIGN.items() if start.startswith(magic)), None)
