"""The data set that needs no network: 1,797 handwritten digits inside scikit-learn."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from lipt.common.data.rows import ArrayRows
from lipt.common.extras import import_extra

# The file's brightnesses are 0..16.
_MAX_BRIGHTNESS = 16


# The order of the file is by writer, so every part has digits of all of them.
_TEST_EVERY = 5


def digits_rows(source: str) -> ArrayRows:
    """The digits as 1 x 8 x 8 images, their brightness spread over 0..255.

    Args:
        source: "digits" for all 1,797; "digits-test" for every fifth of each class, 355 in
            all, and "digits-train" for the others.

    Raises:
        MissingExtraError: scikit-learn is not installed.

    Source: Alpaydin & Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI.
    """
    datasets = import_extra(
        "sklearn.datasets", package="scikit-learn", extra="demo", needed_for="the data set digits"
    )
    digits = datasets.load_digits()
    images_NCHW = np.rint(digits.images[:, None] * (255 / _MAX_BRIGHTNESS)).astype(np.uint8)
    labels_N = digits.target.astype(np.int64)
    rows = _rows_of(source, labels_N)
    return ArrayRows(
        source=source,
        class_names=tuple(str(name) for name in digits.target_names),
        labels_N=torch.from_numpy(labels_N[rows]),
        images_NCHW=images_NCHW[rows],
    )


def _rows_of(source: str, labels_N: NDArray[np.int64]) -> NDArray[np.int64]:
    if source == "digits":
        return np.arange(len(labels_N))
    places_N = np.empty_like(labels_N)  # the how-manieth of its class each row is
    for label in np.unique(labels_N):
        of_class = labels_N == label
        places_N[of_class] = np.arange(of_class.sum())
    is_test_N = places_N % _TEST_EVERY == _TEST_EVERY - 1
    return np.flatnonzero(is_test_N if source == "digits-test" else ~is_test_N)
