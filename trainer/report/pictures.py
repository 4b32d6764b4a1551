"""Pictures of a page: the images of some examples, and what stands for examples by themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.data import Dataset
from lipt.common.images.formats import data_url
from lipt.common.inputs.specs import ImageSpec

# Images up to this many pixels a side are scaled up with sharp edges.
_SMALL_PIXELS = 64
_COARSE_PIXELS = 16


def pictures_of(dataset: Dataset, rows: Sequence[int], max_pixels: int) -> list[str]:
    """The data URLs of some examples; empty ones where examples are no images."""
    if not rows or not has_pictures(dataset):
        return [""] * len(rows)
    images_BCHW = dataset.images(torch.tensor(rows))
    return [data_url(image_CHW, max_pixels) for image_CHW in images_BCHW]


def has_pictures(dataset: Dataset) -> bool:
    """Whether its examples are images."""
    return isinstance(dataset.inputs, ImageSpec)


def are_small(dataset: Dataset) -> bool:
    """Whether its pictures are scaled up where they are shown."""
    shape = dataset.inputs
    return isinstance(shape, ImageSpec) and max(shape.height, shape.width) <= _SMALL_PIXELS


def coarse_values(dataset: Dataset, ids_N: Tensor) -> Tensor:
    """What examples are by themselves; float32, N x D.

    Images' brightnesses at 16 x 16 pixels or fewer, and of other examples all values.
    """
    shape = dataset.inputs
    if not isinstance(shape, ImageSpec):
        stored = dataset.examples(ids_N)
        columns = [stored] if isinstance(stored, Tensor) else list(stored.values())
        values_ND = torch.cat([column.float().reshape(len(ids_N), -1) for column in columns], dim=1)
        return values_ND.nan_to_num()
    sides = (min(shape.height, _COARSE_PIXELS), min(shape.width, _COARSE_PIXELS))
    parts = [
        functional.adaptive_avg_pool2d(dataset.images(ids_B).float(), sides).flatten(start_dim=1)
        for ids_B in torch.split(ids_N, 256)
    ]
    return torch.cat(parts)
