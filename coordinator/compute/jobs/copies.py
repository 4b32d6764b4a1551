"""Near copies: which pictures are there more than once, looked for once per data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from lipt.common.determinism.kernels import pinned_kernels
from lipt.coordinator.compute.context import Context
from lipt.coordinator.diagnosis.duplicates import find_duplicates, likeness_of_pictures
from lipt.coordinator.diagnosis.pictures import look_at
from lipt.coordinator.signals.stored import load_tensors, save_tensors


@dataclass(frozen=True)
class Copies:
    """pictures_N: int64, the same for examples that are near copies of each other."""

    pictures_N: Tensor

    def save(self, path: Path) -> None:
        """Write a safetensors file; readers see all of it or nothing."""
        save_tensors(path, {"pictures_N": self.pictures_N})

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            StateError: the file cannot be read, or is not one of `save`.
        """
        return load_tensors(path, "near copies", lambda tensors, _: cls(**tensors))


def near_copies(context: Context, cpu_threads: int) -> Tensor:
    """Which picture each example is of; N int64.

    Whatever their labels are, the first of a group stands for it, so that it is the same for
    all who ask.
    """
    dataset = context.dataset

    def compute() -> Copies:
        pictures = look_at(
            dataset.images, len(dataset), on_progress=context.progress("looking at all images")
        )
        duplicates = find_duplicates(
            dataset.labels_N,
            torch.zeros(len(dataset)),
            pictures.digests,
            likeness_of_pictures(pictures, dataset.images),
            on_progress=context.progress("looking for near copies"),
        )
        return Copies(duplicates.kept_N)

    depends_on = (dataset.fingerprint, dataset.image_shape, cpu_threads)
    with pinned_kernels(cpu_threads):
        return context.cached("copies", depends_on, load=Copies.load, compute=compute).pictures_N
