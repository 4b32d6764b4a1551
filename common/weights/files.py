"""Dense weights: a state dict read from a safetensors file; `container.pack` writes one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lipt.common.weights.container import read_container
from lipt.common.weights.specs import TensorSpec, Weights, check_specs

# Another model's file is small enough to be opened and its differences named.
_SPARE_TENSORS = 1000
_MAX_TENSORS = 100_000


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
