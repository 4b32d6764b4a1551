"""Encodings of a learner's weights: the run names one, and a file says which one it is in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from lipt.common.config.run_config import WeightEncoding
from lipt.common.weights import planes, sparse
from lipt.common.weights.container import read_container
from lipt.common.weights.specs import TensorSpec, Weights

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
        return sparse.encode_sparse(weights)
    return planes.encode_planes(weights, bfloat16=encoding is WeightEncoding.BFLOAT16_PLANES)


@dataclass(frozen=True, eq=False)
class EncodedWeights(Mapping[str, torch.Tensor]):
    """The weights of an open file; every access decodes a tensor anew.

    Attributes:
        specs: the tensors, in the model's order.
        decode: reads the tensor of a name.
    """

    specs: Mapping[str, TensorSpec]
    decode: Callable[[str], torch.Tensor]

    def __getitem__(self, name: str) -> torch.Tensor:
        """Decode one tensor: on the CPU, independent of the file.

        Raises:
            WeightsError: the file contradicts itself.
        """
        return self.decode(name)

    def __iter__(self) -> Iterator[str]:
        """The names, in the model's order."""
        return iter(self.specs)

    def __len__(self) -> int:
        """How many tensors there are."""
        return len(self.specs)


def decode_weights(source: bytes | Path, *, like: Mapping[str, TensorSpec]) -> Weights:
    """Decode a file of `encode_weights`, whichever encoding it is in.

    Args:
        source: the content, or a path; the file must not change meanwhile.
        like: the model's tensors.

    Returns:
        Tensors on the CPU in the order of `like`, independent of `source`.

    Raises:
        BlobTooLargeError, WeightsError: as `open_weights`.
    """
    return dict(open_weights(source, like=like))


def open_weights(source: bytes | Path, *, like: Mapping[str, TensorSpec]) -> EncodedWeights:
    """Open a file of `encode_weights` for who looks at one tensor after the other.

    Args:
        source: the content, or a path; the file must not change while it is in use.
        like: the model's tensors.

    Raises:
        BlobTooLargeError: larger than the model's dense weights could be, or more
            tensors than it has.
        WeightsError: in no encoding, or a header that contradicts itself or `like`.
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
    decoder = planes.planes_decoder if compressed else sparse.sparse_decoder
    return EncodedWeights(like, decoder(container, like=like))
