"""Encodings of a learner's weights: the run names one, and a file says which one it is in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lipt.common.config.run_config import WeightEncoding
from lipt.common.weights import codec, planes
from lipt.common.weights.files import read_container
from lipt.common.weights.specs import TensorSpec

# Another model's file is small enough to be opened and its differences named.
_SPARE_TENSORS = 1000
# The header, over the values: more than any header may have.
_HEADER_BYTES_PER_TENSOR = 4096


def encode_weights(weights: Mapping[str, torch.Tensor], encoding: WeightEncoding) -> bytes:
    """Encode weights as a run asks for it.

    Raises:
        WeightsError: a tensor's dtype is not one of the format's.
    """
    if encoding is WeightEncoding.BITMASK:
        return codec.encode_sparse(weights)
    return planes.encode_planes(weights, bfloat16=encoding is WeightEncoding.BFLOAT16_PLANES)


def open_weights(
    source: bytes | Path, *, like: Mapping[str, TensorSpec]
) -> planes.PlanesWeights | codec.SparseWeights:
    """Open a file of `encode_weights`, whichever encoding it is in; `dict` of it decodes all.

    Raises:
        BlobTooLargeError: larger than the model's dense weights could be, or more
            tensors than it has.
        WeightsError: in no encoding, or a header that contradicts itself or `like`; what concerns
            a tensor's values when it is decoded.
    """
    max_tensors = 2 * len(like) + _SPARE_TENSORS
    # The bitmask comes on top where all values are kept, and what DEFLATE cannot compress.
    max_values = sum(spec.num_bytes + spec.num_elements for spec in like.values())
    container = read_container(
        source,
        max_bytes=max_values + max_tensors * _HEADER_BYTES_PER_TENSOR,
        max_tensors=max_tensors,
    )
    compressed = planes.METADATA_KEY in container.metadata
    return (planes.PlanesWeights if compressed else codec.SparseWeights)(container, like)
