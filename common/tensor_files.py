"""Weights files: safetensors, checked before memory is allocated.

The library writes metadata in random order, and allocates before it has checked a file. Here equal
tensors give equal bytes and one digest, and the header alone tells a file's claimed content. The
format (https://huggingface.co/docs/safetensors):

    8 bytes    length H of the header, unsigned, little-endian
    H bytes    JSON: {NAME: {"dtype", "shape", "data_offsets": [begin, end]}, ...}, and
               optionally {"__metadata__": {TEXT: TEXT}}; padded with spaces to 8 bytes
    the rest   values, little-endian, row-major, without holes, offsets from here

Tensors are written by falling item size, then name, so that every value is aligned.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from lipt.common.blobs.blob import BlobName
from lipt.common.blobs.files import write_all
from lipt.common.errors import BlobTooLargeError, StateError, WeightsError
from lipt.common.tensor_header import LENGTH_BYTES, malformed, values_begin
from lipt.common.text import listed

ValueT = TypeVar("ValueT")
Weights = dict[str, torch.Tensor]

# Margin in the limit on tensors, so that another model's file is opened and compared.
SPARE_TENSORS = 1000
_METADATA = "__metadata__"
_MAX_NAME_CHARACTERS, _MOST_CHARACTERS = 100, 200
# An entry takes some 120 bytes; long module paths take more.
_HEADER_BYTES_PER_TENSOR = 1024

_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
DTYPES = {name: dtype for dtype, name in _NAMES.items()}

# Valid sizes in a peer's JSON.
Size = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Shape = Annotated[list[Size], Field(max_length=16)]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


def copy_to_cpu(tensors: Mapping[str, torch.Tensor]) -> Weights:
    return {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }


def specs_of(weights: Mapping[str, torch.Tensor]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()}


def quoted(name: str) -> str:
    """A name quoted for an error; a peer's may be long or unprintable."""
    return repr(name if len(name) <= _MAX_NAME_CHARACTERS else f"{name[:_MAX_NAME_CHARACTERS]}...")


def check_specs(specs: Mapping[str, TensorSpec], like: Mapping[str, TensorSpec]) -> None:
    """Refuse weights that do not match the model."""
    differing = {name: specs.get(name) for name, spec in like.items() if specs.get(name) != spec}
    strange = {name: spec for name, spec in specs.items() if name not in like}
    if differing or strange:
        raise differences(differing, strange, like)


def differences(
    differing: Mapping[str, TensorSpec | None],
    strange: Mapping[str, TensorSpec],
    like: Mapping[str, TensorSpec],
    *,
    remedy: str = "Give weights of this model, or name the model that they belong to.",
) -> WeightsError:
    """The error for weights with missing, changed or `strange` tensors."""
    clauses = [
        f"{quoted(name)} is {spec or 'missing'}, the model has {like[name]}"
        for name, spec in differing.items()
    ]
    clauses += [
        f"{quoted(name)} is {spec}, the model has no such tensor" for name, spec in strange.items()
    ]
    shown = listed(clauses, 3, separator="; ")
    return WeightsError(
        f"the weights differ from the model's in {len(clauses)} tensors: {shown}. {remedy}"
    )


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    dtype: Annotated[str, Field(strict=True)]
    shape: Shape
    data_offsets: Annotated[list[Size], Field(min_length=2, max_length=2)]


_ENTRIES = TypeAdapter(dict[str, _Entry])
_TEXTS = TypeAdapter(dict[str, str])


def non_finite(weights: Mapping[str, torch.Tensor]) -> str:
    """The start of a sentence that names NaN or infinite weights; empty without any."""
    counts = {name: int((~tensor.isfinite()).sum()) for name, tensor in weights.items()}
    bad = {name: count for name, count in counts.items() if count}
    if not bad:
        return ""
    name, count = next(iter(bad.items()))
    num_more = len(bad) - 1
    more = f", as have {num_more} other tensors" if num_more else ""
    return f"{name!r} has NaN or infinite values ({count} of {weights[name].numel()}){more}"


# Exact as a float: momentum may divide by it.
_MOST_BATCHES = 2**53


def unusable(weights: Mapping[str, torch.Tensor]) -> str:
    """Like `non_finite`, also for batch-norm statistics that no training gives."""
    for name, tensor in weights.items():
        statistic = name.rpartition(".")[2]
        if statistic == "running_var" and bool((tensor < 0).any()):
            return f"{quoted(name)} has a variance below 0 ({float(tensor.min()):.4g})"
        if statistic == "num_batches_tracked" and tensor.numel():
            least, most = int(tensor.min()), int(tensor.max())
            if least < 0 or most > _MOST_BATCHES:
                return f"{quoted(name)} counts {least if least < 0 else most} batches"
    return non_finite(weights)


def read_weights(
    source: bytes | Path, *, like: Mapping[str, TensorSpec], max_bytes: int
) -> Weights:
    """Read a safetensors file with exactly the tensors `like`, compared before allocation."""
    container = read_container(source, max_bytes=max_bytes, max_tensors=len(like) + SPARE_TENSORS)
    check_specs(container.specs, like)
    return {name: container.tensor(name) for name in like}


def pack(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Pack tensors as a file; equal tensors and metadata give equal bytes."""
    return b"".join(_parts(tensors, metadata))


def packed_name(tensors: Mapping[str, torch.Tensor]) -> BlobName:
    """The name of the file that `pack` makes of tensors, which is not made."""
    digest, size_bytes = hashlib.sha256(), 0
    for part in _parts(tensors, None):
        digest.update(part)
        size_bytes += len(part)
    return BlobName(digest.hexdigest(), size_bytes)


def write_packed(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a file as `pack` does, without a copy in memory."""
    with path.open("wb", buffering=0) as file:
        for part in _parts(tensors, metadata):
            write_all(file, part)


def _parts(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None
) -> list[bytes | memoryview]:
    header: dict[str, Any] = {}
    if metadata:
        header[_METADATA] = dict(sorted(metadata.items()))
    parts: list[memoryview] = []
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        if tensor.dtype not in _NAMES:
            known = ", ".join(map(str, _NAMES))
            raise WeightsError(f"{quoted(name)} is {tensor.dtype}. Convert it to one of {known}.")
        values = bytes_of(tensor).data
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + len(values)],
        }
        parts.append(values)
        end += len(values)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    return [len(text).to_bytes(LENGTH_BYTES, "little"), text, *parts]


def bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """A tensor's stored values, 1-D; a view if its layout allows."""
    contiguous = tensor.detach().cpu().contiguous()
    # Tensors of at most one element may have any stride, which view() refuses.
    flat = contiguous.as_strided((contiguous.numel(),), (1,))
    return flat.view(torch.uint8).numpy()


@dataclass(frozen=True)
class Container:
    """A file with a checked header; values are not read yet."""

    metadata: dict[str, str]
    specs: dict[str, TensorSpec]
    _begins: dict[str, int]
    _data: memoryview

    def values(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes, read-only and without a copy."""
        if isinstance(self._data.obj, mmap.mmap):
            # Release pages read before; the page cache keeps them.
            self._data.obj.madvise(mmap.MADV_DONTNEED)
        begin = self._begins[name]
        return np.frombuffer(self._data[begin : begin + self.specs[name].num_bytes], np.uint8)

    def tensor(self, name: str) -> torch.Tensor:
        spec = self.specs[name]
        tensor = torch.empty(spec.shape, dtype=spec.dtype, device="cpu")
        bytes_of(tensor)[:] = self.values(name)
        return tensor


def read_container(
    source: bytes | Path, *, max_bytes: int, max_tensors: int, max_metadata_bytes: int = 0
) -> Container:
    """Open an untrusted file: check sizes, then the header, then the offsets.

    A path is mapped: the file must not change while the container is in use.
    """
    data = _open(source, max_bytes)
    label = str(source) if isinstance(source, Path) else "the file"
    start = values_begin(bytes(data[: LENGTH_BYTES + 1]), len(data), label)
    length = start - LENGTH_BYTES
    max_length = max_tensors * _HEADER_BYTES_PER_TENSOR + max_metadata_bytes
    if length > max_length:
        raise _too_large(label, f"has a header of {length} bytes", max_length)
    metadata, entries = _parse(bytes(data[LENGTH_BYTES:start]), label)
    if len(entries) > max_tensors:
        raise _too_large(label, f"declares {len(entries)} tensors", max_tensors)
    specs: dict[str, TensorSpec] = {}
    begins: dict[str, int] = {}
    end = 0
    # By offset: a gap could hide bytes, an overlap could claim too many.
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if entry.dtype not in DTYPES:
            raise malformed(label, f"{quoted(name)} has the unknown dtype {entry.dtype[:20]!r}")
        spec = TensorSpec(tuple(entry.shape), DTYPES[entry.dtype])
        # Beside a 0 any other size would fit the file, but not a tensor.
        if math.prod(filter(None, spec.shape)) * spec.dtype.itemsize >= 2**63:
            raise malformed(label, f"{quoted(name)} is {spec}, which no tensor can be")
        if entry.data_offsets != [end, end + spec.num_bytes]:
            where = f"lies at {entry.data_offsets}, not at {[end, end + spec.num_bytes]}"
            raise malformed(label, f"{quoted(name)} is {spec}, but {where}")
        specs[name], begins[name] = spec, end
        end += spec.num_bytes
    if end != len(data) - start:
        raise malformed(label, f"its header describes {end} bytes, {len(data) - start} are there")
    return Container(metadata, {name: specs[name] for name in entries}, begins, data[start:])


def _open(source: bytes | Path, max_bytes: int) -> memoryview:
    if isinstance(source, bytes):
        _check_size(len(source), max_bytes, "the file")
        return memoryview(source)
    try:
        with source.open("rb") as file:
            size = file.seek(0, 2)
            _check_size(size, max_bytes, str(source))
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise WeightsError(
            f"{source} cannot be read: {error.strerror}. Give the path of a safetensors file."
        ) from error


def _check_size(size: int, max_bytes: int, label: str) -> None:
    if size > max_bytes:
        raise _too_large(label, f"has {size} bytes", max_bytes)
    if size <= LENGTH_BYTES:
        raise malformed(label, f"{size} bytes are too few")


def _too_large(label: str, what: str, most: int) -> BlobTooLargeError:
    return BlobTooLargeError(
        f"{label} {what}; at most {most} are read. Give weights of this model."
    )


def _parse(text: bytes, label: str) -> tuple[dict[str, str], dict[str, _Entry]]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            raise ValueError("a name occurs twice")
        return values

    try:
        header = json.loads(text, object_pairs_hook=unique)
        metadata = header.pop(_METADATA, {})
        return _TEXTS.validate_python(metadata), _ENTRIES.validate_python(header)
    except ValidationError as error:
        raise malformed(label, f"its header: {complaint(error)}") from None
    except (ValueError, RecursionError) as error:
        raise malformed(label, f"its header is not JSON ({error})") from None


def complaint(error: ValidationError) -> str:
    """The first error in a peer's JSON, with its names cut."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{quoted(where)}: {first['msg'][:_MOST_CHARACTERS]}"


def load_tensors(
    path: Path, build: Callable[[dict[str, torch.Tensor], dict[str, str]], ValueT]
) -> ValueT:
    """Build a value from the mapped tensors and metadata of one of this process's files."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return build(tensors, file.metadata() or {})
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{path} cannot be used ({error}). Delete it: it is computed again."
        ) from error
