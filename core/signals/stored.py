"""Stored tensors: the precision that signals are kept in, and the files they are kept in.

ImageNet's errors take 5 GB in float32, so what is larger than `StorageLimits` is kept in
float16: a relative error of 5e-4, and errors below 6e-8 are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lipt.common.errors import StateError

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class StorageLimits:
    """What all examples' values may take in float32, beyond which they are float16, and in memory.

    memory_bytes: what errors, or features, may take before they are computed in a mapped file. Less
        is quicker in memory: a file is written to the disk even where there is memory enough.
    """

    error_bytes: int = 2 * 1024**3
    feature_bytes: int = 4 * 1024**3
    memory_bytes: int = 1024**3

    def error_dtype(self, num_values: int) -> torch.dtype:
        """What so many errors are kept in."""
        return _dtype(num_values, self.error_bytes)

    def feature_dtype(self, num_values: int) -> torch.dtype:
        """What so many values of features are kept in."""
        return _dtype(num_values, self.feature_bytes)


STORAGE_LIMITS = StorageLimits()


def _dtype(num_values: int, max_bytes: int) -> torch.dtype:
    return torch.float16 if num_values * torch.float32.itemsize > max_bytes else torch.float32


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file; readers see all of it or nothing."""
    partial = path.with_name(f"{path.name}.part")
    contiguous = {name: values.contiguous() for name, values in tensors.items()}
    save_file(contiguous, partial, None if metadata is None else dict(metadata))
    partial.replace(path)


def load_tensors(
    path: Path, what: str, build: Callable[[dict[str, Tensor], dict[str, str]], ValueT]
) -> ValueT:
    """What is built of the tensors and the metadata that `save_tensors` wrote.

    They are mapped into memory: pages are read as they are used.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return build(tensors, file.metadata() or {})
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise StateError(
            f"{path} does not hold {what} ({error}). Delete it: they are computed again."
        ) from error
