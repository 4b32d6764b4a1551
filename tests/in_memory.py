"""Made-up data sets of pixels."""

from torch import Tensor

from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import ImageSpec
from lipt.data.sources.rows import ArrayRows


def in_memory(
    source: str,
    class_names: tuple[str, ...],
    labels_N: Tensor,
    fingerprint: str,
    images_NCHW: Tensor,
) -> Dataset:
    rows = ArrayRows(source, class_names, labels_N, images_NCHW.numpy())
    return Dataset(rows, fingerprint, ImageSpec(*images_NCHW.shape[1:]))
