"""Codec of sparse weights: a bitmask and the kept values."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from lipt.common.errors import WeightsError
from lipt.common.weights.files import Container, bytes_of, is_shape, pack
from lipt.common.weights.specs import TensorSpec, check_specs, quoted

# Codec parts: what both encodings of weights have: the bitmask, the description, the open file.
#
# A value is kept when its bit pattern is not zero, so -0.0 and every NaN survive. The bitmask of n
# values has ceil(n / 8) bytes: bit i % 8 of byte i // 8, counted from the lowest, is set when value
# i is kept; row-major over the values; padding bits are zero. The description is JSON in the file's
# metadata, without spaces: {"version":V,PART:{NAME:...}}. A tensor that it names is stored as
# mask/NAME beside its values, all others as dense/NAME.

EntryT = TypeVar("EntryT")


class EncodedWeights(Mapping[str, torch.Tensor], ABC, Generic[EntryT]):
    """The weights of an open file; every access decodes a tensor anew.

    Every size is compared with the model's before anything is allocated for it.
    """

    # Where a masked tensor's values are stored: FORM/NAME.
    values_form: ClassVar[str]

    def __init__(self, container: Container, like: Mapping[str, TensorSpec]) -> None:
        self.container = container
        self.like = like
        self._masked = self._read_entries(container.metadata)
        check_specs(dict(self._declared()), like)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._masked:
            return self._decode(name, self._masked[name])
        return self.container.tensor(f"dense/{name}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.like)

    def __len__(self) -> int:
        return len(self.like)

    def _declared(self) -> Iterator[tuple[str, TensorSpec]]:
        stored = self.container.specs
        for part, spec in stored.items():
            form, _, name = part.partition("/")
            if form == "dense" and name not in self._masked:
                yield name, spec
            elif form not in ("mask", self.values_form) or name not in self._masked:
                raise contradiction(f"{quoted(part)} is neither dense nor of a masked tensor")
        for name, entry in self._masked.items():
            mask, values = stored.get(f"mask/{name}"), stored.get(f"{self.values_form}/{name}")
            if mask is None or values is None:
                raise contradiction(f"the mask or the values of {quoted(name)} are missing")
            yield name, self._spec(name, entry, mask, values)

    @abstractmethod
    def _read_entries(self, metadata: Mapping[str, str]) -> dict[str, EntryT]:
        """What the description says of the masked tensors."""

    @abstractmethod
    def _spec(self, name: str, entry: EntryT, mask: TensorSpec, values: TensorSpec) -> TensorSpec:
        """What a masked tensor is, once its parts agree with its entry."""

    @abstractmethod
    def _decode(self, name: str, entry: EntryT) -> torch.Tensor:
        """A masked tensor."""


def split(tensor: torch.Tensor) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
    """A tensor's bitmask, and the bit patterns of the kept values as unsigned integers."""
    bits = bits_of(tensor)
    kept = bits != 0
    return np.packbits(kept, bitorder="little"), bits[kept]


def join(
    mask: npt.NDArray[np.uint8], values: npt.NDArray[Any], spec: TensorSpec, name: str
) -> torch.Tensor:
    """The tensor with the bit patterns `values` where `mask` has bits."""
    num_padding = -spec.num_elements % 8
    if num_padding and int(mask[-1]) >> (8 - num_padding):
        raise contradiction(f"the mask of {quoted(name)} sets bits after its end")
    kept = np.unpackbits(mask, count=spec.num_elements, bitorder="little").view(np.bool_)
    num_kept = int(np.count_nonzero(kept))
    if num_kept != values.size:
        raise contradiction(
            f"the mask of {quoted(name)} keeps {num_kept} values, {values.size} follow"
        )
    tensor = torch.zeros(spec.shape, dtype=spec.dtype)
    bits_of(tensor)[kept] = values
    return tensor


def bits_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor's bit patterns; a view of it where its layout allows."""
    # numpy has no bfloat16, and -0.0 == 0.0: bit patterns are compared and moved instead.
    return bytes_of(tensor).view(f"u{tensor.itemsize}")


def describe(key: str, version: int, **part: Mapping[str, Any]) -> dict[str, str]:
    """The metadata that `read_description` reads."""
    content = {"version": version, **part}
    return {key: json.dumps(content, separators=(",", ":"), ensure_ascii=False)}


def read_description(
    metadata: Mapping[str, str], key: str, version: int, part: str
) -> dict[str, Any]:
    """What a file's metadata says of its tensors, by name."""
    try:
        description = json.loads(metadata[key])
        found, entries = description["version"], dict(description[part].items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise contradiction(f"{key!r} is not version and {part}") from None
    if found != version:
        raise WeightsError(
            f"the file has {key!r} of version {str(found)[:20]}, this program reads version "
            f"{version}. Run the same lipt version on both sides."
        )
    return entries


def contradiction(why: str) -> WeightsError:
    """The error for a file whose parts do not agree with each other."""
    return WeightsError(
        f"the encoded weights contradict themselves: {why}. "
        "Encode them again with lipt.common.weights.encodings.encode_weights."
    )


# Sparse codec: pruned weights as a bitmask and the values that were kept.
#
# A file is a safetensors file whose metadata has the key `lipt.sparse` with
# {"version":1,"shapes":{NAME:[...]}}: names sorted, no spaces. Each tensor NAME is
# stored in one of two forms:
#
#     dense/NAME    the tensor as it is
#     mask/NAME     uint8: the bitmask of its values
#     values/NAME   the kept values in row-major order, 1-D, of the tensor's dtype
#
# `shapes` has the shapes of those with a mask, which the other two do not tell. The bitmask and
# what is kept are those of `codec.py`: decoding gives back the very bits, so the soup is that of
# the unpruned path. A tensor gets a mask when it is floating point and ceil(n / 8) plus its kept
# values take fewer bytes than the tensor. COO indices would take more than the dense tensor at the
# densities of 0.85 to 0.95 that learners have.

METADATA_KEY = "lipt.sparse"
_VERSION = 1


def encode_sparse(weights: Mapping[str, torch.Tensor]) -> bytes:
    """Encode weights without loss; equal weights give equal bytes."""
    stored: dict[str, torch.Tensor] = {}
    shapes: dict[str, list[int]] = {}
    for name, tensor in sorted(weights.items()):
        masked = split(tensor) if tensor.is_floating_point() else None
        if masked and sum(part.nbytes for part in masked) < tensor.nbytes:
            mask, values = masked
            stored[f"mask/{name}"] = torch.from_numpy(mask)
            stored[f"values/{name}"] = torch.from_numpy(values.view(np.uint8)).view(tensor.dtype)
            shapes[name] = list(tensor.shape)
        else:
            stored[f"dense/{name}"] = tensor
    return pack(stored, describe(METADATA_KEY, _VERSION, shapes=shapes))


class SparseWeights(EncodedWeights[tuple[int, ...]]):
    """An open file of `encode_sparse`; the entries are the shapes of the masked tensors."""

    values_form = "values"

    def _read_entries(self, metadata: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
        if METADATA_KEY not in metadata:
            raise WeightsError(
                f"the file has no {METADATA_KEY!r} in its metadata, so it is not sparse weights. "
                "Dense weights are read with read_weights."
            )
        shapes = read_description(metadata, METADATA_KEY, _VERSION, "shapes")
        if not all(is_shape(shape) for shape in shapes.values()):
            raise contradiction(f"{METADATA_KEY!r} has an impossible shape")
        return {name: tuple(shape) for name, shape in shapes.items()}

    def _spec(
        self, name: str, entry: tuple[int, ...], mask: TensorSpec, values: TensorSpec
    ) -> TensorSpec:
        spec = TensorSpec(entry, values.dtype)
        expected = TensorSpec((-(-spec.num_elements // 8),), torch.uint8)
        if mask != expected:
            raise contradiction(f"the mask of {quoted(name)} is {mask}, {spec} needs {expected}")
        if not spec.dtype.is_floating_point or len(values.shape) != 1:
            raise contradiction(
                f"the values of {quoted(name)} are {values}, not 1-D floating point"
            )
        return spec

    def _decode(self, name: str, entry: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG002 - `like` has it
        values = self.container.values(f"values/{name}").view(f"u{self.like[name].dtype.itemsize}")
        return join(self.container.values(f"mask/{name}"), values, self.like[name], name)
