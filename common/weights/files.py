"""Dense weights: a state dict as a safetensors file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from lipt.common.weights.container import pack, read_container
from lipt.common.weights.specs import TensorSpec, Weights, check_specs

# Another model's file is small enough to be opened and its differences named.
_SPARE_TENSORS = 1000
_MAX_TENSORS = 100_000


def serialize_weights(
    weights: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A safetensors file: equal weights and metadata give equal bytes.

    Args:
        weights: tensors by name, any shape, layout and device; those that share
            memory are stored each on its own.
        metadata: texts for the file's header.

    Raises:
        WeightsError: a tensor's dtype is not one of the format's.
    """
    return pack(weights, metadata or {})


def read_weights(
    source: bytes | Path, *, like: Mapping[str, TensorSpec], max_bytes: int
) -> Weights:
    """Read a safetensors file that must hold exactly the tensors of a model.

    Nothing is allocated for its values before the header was compared with `like`.

    Args:
        source: the content, or a path; the file must not change meanwhile.
        like: the model's tensors.
        max_bytes: the largest file that is read.

    Returns:
        Tensors on the CPU in the order of `like`, independent of `source`.

    Raises:
        BlobTooLargeError: the file, its header, or its tensor count is over the limit.
        WeightsError: not safetensors (a pickle, zip or numpy file is named, with
            how to convert it), or names, shapes or dtypes that are not the model's.
    """
    container = read_container(source, max_bytes=max_bytes, max_tensors=len(like) + _SPARE_TENSORS)
    check_specs(container.specs, like)
    return {name: container.tensor(name) for name in like}


def read_specs(path: Path) -> dict[str, TensorSpec]:
    """What the tensors of a safetensors file are, from its header.

    Raises:
        BlobTooLargeError: it has more tensors than any model.
        WeightsError: not safetensors, or one that contradicts itself.
    """
    max_bytes = path.stat().st_size if path.is_file() else 0
    return read_container(path, max_bytes=max_bytes, max_tensors=_MAX_TENSORS).specs
