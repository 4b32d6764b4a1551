"""Digests: one short text for a numeric result, which any changed bit changes.

The canonical bytes of a value are, each after its kind:

    tensor, array    dtype, shape, values as little-endian, row-major bytes
    mapping          the entries by ascending name
    sequence         the length, the items in order
    float            8 bytes, little-endian IEEE 754
    int, bool, text, bytes, None

A digest is the SHA-256 of these bytes, of which the first 16 hexadecimal digits are kept.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

_DIGITS = 16


def digest(value: Any) -> str:
    sha256 = hashlib.sha256()
    for part in _parts(value):
        # The length keeps neighbouring parts apart.
        sha256.update(struct.pack("<q", len(part)))
        sha256.update(part)
    return sha256.hexdigest()[:_DIGITS]


def _parts(value: Any) -> Iterator[bytes]:
    match value:
        case torch.Tensor():
            yield from _array(_bits(value), str(value.dtype).removeprefix("torch."))
        case np.ndarray() | np.generic():
            array: np.ndarray = np.asarray(value)
            yield from _array(array, array.dtype.name)
        case Mapping():
            yield b"mapping"
            for name, item in sorted(value.items()):
                yield from _parts(name)
                yield from _parts(item)
            yield b"end"
        case str() | bytes() | bool() | int() | float() | None:
            yield type(value).__name__.encode()
            yield _scalar(value)
        case Sequence():
            yield f"sequence {len(value)}".encode()
            for item in value:
                yield from _parts(item)
        case _:
            raise TypeError(f"a {type(value).__name__} has no canonical bytes")


def _scalar(value: str | bytes | float | None) -> bytes:
    match value:
        case bytes():
            return value
        case float():
            return struct.pack("<d", value)
        case _:
            return str(value).encode()


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """The values as an array; numpy has no bfloat16, so that its bits stand for it."""
    values = tensor.detach().cpu().contiguous()
    return (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy()


def _array(array: np.ndarray, dtype: str) -> Iterator[bytes]:
    yield f"array {dtype} {list(array.shape)}".encode()
    yield np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
