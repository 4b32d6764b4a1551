"""The data set that needs no network: 1,797 handwritten digits inside scikit-learn."""

from __future__ import annotations

import numpy as np
import torch

from lipt.common.data.rows import ArrayRows
from lipt.common.extras import import_extra

# The file's brightnesses are 0..16.
_MAX_BRIGHTNESS = 16


def digits_rows(source: str) -> ArrayRows:
    """The digits as 1 x 8 x 8 images, their brightness spread over 0..255.

    Raises:
        MissingExtraError: scikit-learn is not installed.

    Source: Alpaydin & Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI.
    """
    datasets = import_extra(
        "sklearn.datasets", package="scikit-learn", extra="demo", needed_for="the data set digits"
    )
    digits = datasets.load_digits()
    images_NCHW = np.rint(digits.images[:, None] * (255 / _MAX_BRIGHTNESS)).astype(np.uint8)
    return ArrayRows(
        source=source,
        class_names=tuple(str(name) for name in digits.target_names),
        labels_N=torch.from_numpy(digits.target.astype(np.int64)),
        images_NCHW=images_NCHW,
    )
