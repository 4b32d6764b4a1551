"""Sparse codec: pruned weights as a bitmask and the values that were kept.

A file is a safetensors file whose metadata has the key `lipt.sparse` with
{"version":1,"shapes":{NAME:[...]}}: names sorted, no spaces. Each tensor NAME is
stored in one of two forms:

    dense/NAME    the tensor as it is
    mask/NAME     uint8: the bitmask of its values
    values/NAME   the kept values in row-major order, 1-D, of the tensor's dtype

`shapes` has the shapes of those with a mask, which the other two do not tell. The bitmask and
what is kept are those of `codec.py`: decoding gives back the very bits, so the soup is that of
the unpruned path. A tensor gets a mask when it is floating point and ceil(n / 8) plus its kept
values take fewer bytes than the tensor. COO indices would take more than the dense tensor at the
densities of 0.85 to 0.95 that learners have.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from lipt.common.errors import WeightsError
from lipt.common.weights.codec import (
    EncodedWeights,
    contradiction,
    describe,
    join,
    read_description,
    split,
)
from lipt.common.weights.container import is_shape, pack
from lipt.common.weights.specs import TensorSpec, quoted

METADATA_KEY = "lipt.sparse"
_VERSION = 1


def encode_sparse(weights: Mapping[str, torch.Tensor]) -> bytes:
    """Encode weights without loss; equal weights give equal bytes.

    Args:
        weights: tensors by name, any shape, dtype, layout and device.

    Raises:
        WeightsError: a tensor's dtype is not one of the format's.
    """
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
