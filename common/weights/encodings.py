"""Encodings of a learner's weights: the bitmask of `codec.py`, or planes with compressed exponents.

The run names one, and a file says which one it is in.

A trained weight's sign and mantissa look like noise, its exponent does not: of fp32's 32 bits
some 5 can go. A file is a safetensors file whose metadata has the key `lipt.planes` with
{"version":1,"tensors":{NAME:{"dtype":D,"kept":K,"shape":[...]}}}: names and keys sorted, no
spaces. Each tensor NAME is stored in one of two forms, both uint8 and 1-D but the first:

    dense/NAME    an integer tensor as it is
    mask/NAME     its bitmask (`codec.py`), as one raw DEFLATE stream (RFC 1951)
    planes/NAME   the K kept values of dtype D, byte by byte: with each value's bits rotated
                  left by one, so that its exponent comes first and its sign last, the lowest
                  byte of all values, then the next, ...; the highest as one raw DEFLATE stream

D is the tensor's own dtype, or BF16 for a float32 tensor whose values were rounded to nearest,
ties to even; a BF16 value becomes float32 again by 16 zero bits. A value is kept when the bits
that are stored are not all zero. Only Huffman codes are asked of DEFLATE: neighbours have
nothing in common, so looking for repetitions costs time and gains nothing. Different versions
of zlib may write different bytes, which decode to the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lipt.common.config.run_config import WeightEncoding
from lipt.common.weights.codec import (
    EncodedWeights,
    SparseWeights,
    contradiction,
    describe,
    encode_sparse,
    join,
    read_description,
    split,
)
from lipt.common.weights.files import is_shape, pack, read_container
from lipt.common.weights.specs import TensorSpec, quoted

# Another model's file is small enough to be opened and its differences named.
_SPARE_TENSORS = 1000
# The header, over the values: more than any header may have.
_HEADER_BYTES_PER_TENSOR = 4096
METADATA_KEY = "lipt.planes"
_VERSION = 1
_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class _Entry:
    dtype: torch.dtype
    num_kept: int
    shape: tuple[int, ...]


def encode_planes(weights: Mapping[str, torch.Tensor], *, bfloat16: bool = False) -> bytes:
    """Encode weights; without loss unless `bfloat16`."""
    stored: dict[str, torch.Tensor] = {}
    tensors: dict[str, Any] = {}
    for name, tensor in sorted(weights.items()):
        if not tensor.is_floating_point():
            stored[f"dense/{name}"] = tensor
            continue
        rounded = tensor.bfloat16() if bfloat16 and tensor.dtype == torch.float32 else tensor
        mask, values = split(rounded)
        stored[f"mask/{name}"] = _tensor(_deflate(mask))
        stored[f"planes/{name}"] = _tensor(_to_planes(values))
        tensors[name] = {
            "dtype": _NAMES[rounded.dtype],
            "kept": int(values.size),
            "shape": list(tensor.shape),
        }
    return pack(stored, describe(METADATA_KEY, _VERSION, tensors=tensors))


class PlanesWeights(EncodedWeights[_Entry]):
    """An open file of `encode_planes`; a stream of more than was declared is not read on."""

    values_form = "planes"

    def _read_entries(self, metadata: Mapping[str, str]) -> dict[str, _Entry]:
        tensors = read_description(metadata, METADATA_KEY, _VERSION, "tensors")
        try:
            return {name: _read_entry(entry) for name, entry in tensors.items()}
        except (ValueError, KeyError, TypeError):
            raise contradiction(f"{METADATA_KEY!r} has an impossible entry") from None

    def _spec(self, name: str, entry: _Entry, mask: TensorSpec, values: TensorSpec) -> TensorSpec:
        for part in (mask, values):
            if part.dtype != torch.uint8 or len(part.shape) != 1:
                raise contradiction(f"a part of {quoted(name)} is {part}, not 1-D uint8")
        expected = self.like.get(name)
        rounded = entry.dtype == torch.bfloat16 and expected and expected.dtype == torch.float32
        spec = TensorSpec(entry.shape, torch.float32 if rounded else entry.dtype)
        if entry.num_kept > spec.num_elements:
            raise contradiction(f"{quoted(name)} is {spec}, and keeps {entry.num_kept} values")
        return spec

    def _decode(self, name: str, entry: _Entry) -> torch.Tensor:
        spec, stored = self.like[name], self.container
        mask = _inflate(stored.values(f"mask/{name}"), -(-spec.num_elements // 8), name)
        values = _from_planes(stored.values(f"planes/{name}"), entry, name)
        if spec.dtype != entry.dtype:
            values = values.astype(np.uint32) << 16
        return join(mask, values, spec, name)


def _read_entry(entry: Any) -> _Entry:
    if not is_shape(entry["shape"]) or not is_shape([entry["kept"]]):
        raise ValueError("an impossible shape, or number of values")
    return _Entry(_DTYPES[entry["dtype"]], entry["kept"], tuple(entry["shape"]))


def _to_planes(values: npt.NDArray[Any]) -> bytes:
    rotated = (values << 1) | (values >> (8 * values.itemsize - 1))
    planes = np.ascontiguousarray(rotated.view(np.uint8).reshape(-1, values.itemsize).T)
    return planes[:-1].tobytes() + _deflate(planes[-1])


def _from_planes(content: npt.NDArray[np.uint8], entry: _Entry, name: str) -> npt.NDArray[Any]:
    itemsize, num_kept = entry.dtype.itemsize, entry.num_kept
    num_raw_bytes = (itemsize - 1) * num_kept
    if content.size < num_raw_bytes:
        raise contradiction(f"{quoted(name)} has {content.size} bytes for {num_kept} values")
    rotated = np.empty(num_kept, np.dtype(f"u{itemsize}"))
    planes = rotated.view(np.uint8).reshape(-1, itemsize)
    planes[:, :-1] = content[:num_raw_bytes].reshape(itemsize - 1, num_kept).T
    planes[:, -1] = _inflate(content[num_raw_bytes:], num_kept, name)
    return (rotated >> 1) | (rotated << (8 * itemsize - 1))


def _deflate(content: npt.NDArray[np.uint8]) -> bytes:
    squeeze = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return squeeze.compress(content.data) + squeeze.flush()


def _inflate(content: npt.NDArray[np.uint8], num_bytes: int, name: str) -> npt.NDArray[np.uint8]:
    stretch = zlib.decompressobj(-15)
    try:
        found = stretch.decompress(content.tobytes(), num_bytes + 1)
    except zlib.error as error:
        raise contradiction(f"a stream of {quoted(name)} is damaged ({error})") from None
    if len(found) != num_bytes or not stretch.eof or stretch.unused_data:
        raise contradiction(f"a stream of {quoted(name)} does not hold {num_bytes} bytes")
    return np.frombuffer(found, np.uint8)


def _tensor(content: bytes) -> torch.Tensor:
    # The buffer is only read from here on.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def encode_weights(weights: Mapping[str, torch.Tensor], encoding: WeightEncoding) -> bytes:
    """Encode weights as a run asks for it."""
    if encoding is WeightEncoding.BITMASK:
        return encode_sparse(weights)
    return encode_planes(weights, bfloat16=encoding is WeightEncoding.BFLOAT16_PLANES)


def open_weights(
    source: bytes | Path, *, like: Mapping[str, TensorSpec]
) -> PlanesWeights | SparseWeights:
    """Open a file of `encode_weights`, whichever encoding it is in; `dict` of it decodes all."""
    max_tensors = 2 * len(like) + _SPARE_TENSORS
    # The bitmask comes on top where all values are kept, and what DEFLATE cannot compress.
    max_values = sum(spec.num_bytes + spec.num_elements for spec in like.values())
    container = read_container(
        source,
        max_bytes=max_values + max_tensors * _HEADER_BYTES_PER_TENSOR,
        max_tensors=max_tensors,
    )
    compressed = METADATA_KEY in container.metadata
    return (PlanesWeights if compressed else SparseWeights)(container, like)
