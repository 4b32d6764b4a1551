"""Encodings of a learner's weights: a bitmask with the kept values, or planes of their bytes.

The run chooses the encoding and each file states its own. A safetensors file's metadata describes
the masked tensors, as JSON with sorted names and without spaces. They are stored as mask/NAME
beside their values, all others as dense/NAME. A value is kept when its stored bits are not all
zero, so -0.0 and every NaN survive. The bitmask of n values has ceil(n / 8) bytes. Bit i % 8 of
byte i // 8, from the lowest, is set when value i, in row-major order, is kept; padding bits are
zero.

Bitmask. The metadata has `lipt.sparse`: {"version":1,"shapes":{NAME:[...]}}.

    mask/NAME     uint8: the bitmask
    values/NAME   the kept values, 1-D, of the tensor's dtype

A floating-point tensor gets a mask when both parts take fewer bytes than the tensor. COO indices
would exceed the dense tensor at the learners' densities of 0.85 to 0.95.

Planes. The metadata has `lipt.planes`:
{"version":1,"tensors":{NAME:{"dtype":D,"kept":K,"shape":[...]}}}. Every floating-point tensor has a
mask; both parts are uint8 and 1-D.

    mask/NAME     the bitmask, as one raw DEFLATE stream (RFC 1951)
    planes/NAME   the K kept values of dtype D, byte by byte: with each value's bits rotated
                  left by one, so that its exponent comes first and its sign last, the lowest
                  byte of all values, then the next, ...; the highest as one raw DEFLATE stream

D is the tensor's own dtype, or BF16 for float32 values rounded to nearest, ties to even. A BF16
value becomes float32 again by 16 zero bits. Only exponents compress, by some 5 of fp32's 32 bits;
sign and mantissa look like noise. DEFLATE uses Huffman codes only: neighbours are unrelated.
Versions of zlib may write different bytes, which decode to the same values.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ValidationError

from lipt.common.config.run_config import WeightEncoding
from lipt.common.errors import WeightsError
from lipt.common.tensor_files import (
    DTYPES,
    SPARE_TENSORS,
    Container,
    Shape,
    Size,
    TensorSpec,
    bytes_of,
    check_specs,
    complaint,
    pack,
    quoted,
    read_container,
)

SPARSE_KEY, PLANES_KEY = "lipt.sparse", "lipt.planes"
_VERSION = 1
# More than any header needs.
_HEADER_BYTES_PER_TENSOR = 4096
_FLOATS = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}


class _Plane(BaseModel):
    dtype: Literal["BF16", "F16", "F32", "F64"]
    kept: Size
    shape: Shape


class _Sparse(BaseModel):
    version: Literal[1]
    shapes: dict[str, Shape]


class _Planes(BaseModel):
    version: Literal[1]
    tensors: dict[str, _Plane]


def encode_weights(weights: Mapping[str, torch.Tensor], encoding: WeightEncoding) -> bytes:
    if encoding is WeightEncoding.BITMASK:
        return encode_sparse(weights)
    return encode_planes(weights, bfloat16=encoding is WeightEncoding.BFLOAT16_PLANES)


def encode_sparse(weights: Mapping[str, torch.Tensor]) -> bytes:
    """Encode weights without loss; deterministic."""
    stored: dict[str, torch.Tensor] = {}
    shapes: dict[str, list[int]] = {}
    for name, tensor in sorted(weights.items()):
        masked = _split(tensor) if tensor.is_floating_point() else None
        if masked and sum(part.nbytes for part in masked) < tensor.nbytes:
            mask, values = masked
            stored[f"mask/{name}"] = torch.from_numpy(mask)
            stored[f"values/{name}"] = torch.from_numpy(values.view(np.uint8)).view(tensor.dtype)
            shapes[name] = list(tensor.shape)
        else:
            stored[f"dense/{name}"] = tensor
    return _packed(stored, SPARSE_KEY, shapes=shapes)


def encode_planes(weights: Mapping[str, torch.Tensor], *, bfloat16: bool = False) -> bytes:
    """Encode weights, without loss unless `bfloat16`."""
    stored: dict[str, torch.Tensor] = {}
    tensors: dict[str, Any] = {}
    for name, tensor in sorted(weights.items()):
        if not tensor.is_floating_point():
            stored[f"dense/{name}"] = tensor
            continue
        rounded = tensor.bfloat16() if bfloat16 and tensor.dtype == torch.float32 else tensor
        mask, values = _split(rounded)
        for form, content in (("mask", _deflate(mask)), ("planes", _to_planes(values))):
            stored[f"{form}/{name}"] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        tensors[name] = {
            "dtype": _FLOATS[rounded.dtype],
            "kept": int(values.size),
            "shape": list(tensor.shape),
        }
    return _packed(stored, PLANES_KEY, tensors=tensors)


def _packed(stored: Mapping[str, torch.Tensor], key: str, **part: Mapping[str, Any]) -> bytes:
    content = {"version": _VERSION, **part}
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return pack(stored, {key: text})


def open_weights(source: bytes | Path, *, like: Mapping[str, TensorSpec]) -> EncodedWeights:
    """Open a file of either encoding; `dict` of the result decodes all tensors."""
    max_tensors = 2 * len(like) + SPARE_TENSORS
    # Upper bound: all values kept and incompressible, plus the bitmask.
    max_values = sum(spec.num_bytes + spec.num_elements for spec in like.values())
    container = read_container(
        source,
        max_bytes=max_values + max_tensors * _HEADER_BYTES_PER_TENSOR,
        max_tensors=max_tensors,
    )
    return EncodedWeights(container, like)


class EncodedWeights(Mapping[str, torch.Tensor]):
    """The weights of an open file; every access checks sizes and decodes a tensor anew."""

    def __init__(self, container: Container, like: Mapping[str, TensorSpec]) -> None:
        self.container = container
        self.like = like
        self._form = "planes" if PLANES_KEY in container.metadata else "values"
        # The stored spec of each masked tensor, and the number of its kept values.
        self._masked = dict(self._described())
        check_specs(dict(self._declared()), like)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._masked:
            return self.container.tensor(f"dense/{name}")
        spec, (stored, num_kept) = self.like[name], self._masked[name]
        mask = self.container.values(f"mask/{name}")
        content = self.container.values(f"{self._form}/{name}")
        if self._form == "planes":
            mask = _inflate(mask, -(-spec.num_elements // 8), name)
            values = _from_planes(content, stored.dtype.itemsize, num_kept, name)
        else:
            values = content.view(f"u{stored.dtype.itemsize}")
        if stored.dtype != spec.dtype:
            values = values.astype(np.uint32) << 16
        return _join(mask, values, spec, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.like)

    def __len__(self) -> int:
        return len(self.like)

    def _described(self) -> Iterator[tuple[str, tuple[TensorSpec, int]]]:
        entries: Mapping[str, _Plane | list[int]]
        key = PLANES_KEY if self._form == "planes" else SPARSE_KEY
        text = self.container.metadata.get(key, "null")
        try:
            if self._form == "planes":
                entries = _Planes.model_validate_json(text).tensors
            else:
                entries = _Sparse.model_validate_json(text).shapes
        except ValidationError as error:
            raise _contradiction(f"{key!r} in its metadata: {complaint(error)}") from None
        stored = self.container.specs
        for name, entry in entries.items():
            mask, values = stored.get(f"mask/{name}"), stored.get(f"{self._form}/{name}")
            if mask is None or values is None:
                raise _contradiction(f"the mask or the values of {quoted(name)} are missing")
            if isinstance(entry, _Plane):
                spec, num_kept = TensorSpec(tuple(entry.shape), DTYPES[entry.dtype]), entry.kept
                fits = num_kept <= spec.num_elements and all(
                    part == TensorSpec((part.num_bytes,), torch.uint8) for part in (mask, values)
                )
            else:
                spec, num_kept = TensorSpec(tuple(entry), values.dtype), values.num_elements
                fits = mask == TensorSpec((-(-spec.num_elements // 8),), torch.uint8)
                fits = fits and spec.dtype.is_floating_point and len(values.shape) == 1
            if not fits:
                raise _contradiction(
                    f"{quoted(name)} is {spec} and keeps {num_kept} values, with the mask {mask} "
                    f"and the values {values}"
                )
            yield name, (spec, num_kept)

    def _declared(self) -> Iterator[tuple[str, TensorSpec]]:
        for part, spec in self.container.specs.items():
            form, _, name = part.partition("/")
            if form == "dense" and name not in self._masked:
                yield name, spec
            elif form not in ("mask", self._form) or name not in self._masked:
                raise _contradiction(f"{quoted(part)} is neither dense nor of a masked tensor")
        for name, (spec, _) in self._masked.items():
            expected = self.like.get(name)
            rounded = self._form == "planes" and spec.dtype == torch.bfloat16
            widened = rounded and expected and expected.dtype == torch.float32
            yield name, TensorSpec(spec.shape, torch.float32) if widened else spec


def _contradiction(why: str) -> WeightsError:
    return WeightsError(
        f"the encoded weights contradict themselves: {why}. "
        "Encode them again with lipt.models.encodings.encode_weights."
    )


def _split(tensor: torch.Tensor) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """A tensor's bitmask, and the bit patterns of the kept values as unsigned integers."""
    bits = _bits_of(tensor)
    kept = bits != 0
    return np.packbits(kept, bitorder="little"), bits[kept]


def _join(
    mask: npt.NDArray[np.uint8], values: npt.NDArray[Any], spec: TensorSpec, name: str
) -> torch.Tensor:
    """The tensor with the bit patterns `values` where `mask` has bits."""
    num_padding = -spec.num_elements % 8
    if num_padding and int(mask[-1]) >> (8 - num_padding):
        raise _contradiction(f"the mask of {quoted(name)} sets bits after its end")
    kept = np.unpackbits(mask, count=spec.num_elements, bitorder="little").view(np.bool_)
    num_kept = int(np.count_nonzero(kept))
    if num_kept != values.size:
        raise _contradiction(
            f"the mask of {quoted(name)} keeps {num_kept} values, {values.size} follow"
        )
    tensor = torch.zeros(spec.shape, dtype=spec.dtype)
    _bits_of(tensor)[kept] = values
    return tensor


def _bits_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    # A view where the layout allows. Bit patterns are compared: NumPy has no bfloat16, and -0.0 ==
    # 0.0.
    return bytes_of(tensor).view(f"u{tensor.itemsize}")


def _to_planes(values: npt.NDArray[Any]) -> bytes:
    rotated = (values << 1) | (values >> (8 * values.itemsize - 1))
    planes = np.ascontiguousarray(rotated.view(np.uint8).reshape(-1, values.itemsize).T)
    return planes[:-1].tobytes() + _deflate(planes[-1])


def _from_planes(
    content: npt.NDArray[np.uint8], itemsize: int, num_kept: int, name: str
) -> npt.NDArray[Any]:
    num_raw_bytes = (itemsize - 1) * num_kept
    if content.size < num_raw_bytes:
        raise _contradiction(f"{quoted(name)} has {content.size} bytes for {num_kept} values")
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
        inflated = stretch.decompress(content.tobytes(), num_bytes + 1)
    except zlib.error as error:
        raise _contradiction(f"a stream of {quoted(name)} is damaged ({error})") from None
    if len(inflated) != num_bytes or not stretch.eof or stretch.unused_data:
        raise _contradiction(f"a stream of {quoted(name)} does not hold {num_bytes} bytes")
    return np.frombuffer(inflated, np.uint8)
