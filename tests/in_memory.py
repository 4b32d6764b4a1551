"""Made-up data sets of pixels."""

from __future__ import annotations

from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.data.sources.rows import ArrayRows
from lipt.common.inputs.specs import ImageSpec


def in_memory(
    source: str,
    class_names: tuple[str, ...],
    labels_N: Tensor,
    fingerprint: str,
    images_NCHW: Tensor,
) -> Dataset:
    rows = ArrayRows(source, class_names, labels_N, images_NCHW.numpy())
    return Dataset(rows, fingerprint, ImageSpec(*images_NCHW.shape[1:]))
