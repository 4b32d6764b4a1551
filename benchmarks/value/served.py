"""The dirty data as a coordinator is given it: `--data benchmarks.value.served:data`.

Which one it is stands in the environment of the process.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from benchmarks.value.originals import Images, original
from benchmarks.value.settings import make

VARIABLE = "BENCH_VALUE_DATA"


class Served:
    """A map-style data set of (image, label), as any user's."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self.classes = images.class_names
        self.targets = images.labels_N.tolist()

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self._images.images_NCHW[row], self.targets[row]


def named(data: str, setting: str, seed: int) -> str:
    """The variable's value."""
    return f"{data}/{setting}/{seed}"


def data() -> Served:
    """The data set that the environment names."""
    torch.set_num_threads(1)
    name, setting, seed = os.environ[VARIABLE].split("/")
    return Served(make(setting, original(name).train, int(seed)).images)
