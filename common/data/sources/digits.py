"""Digits: 1,797 handwritten digits inside scikit-learn, which need no network.

Its file is read without importing it: with scipy and pandas that takes a second, in every
process of a demo or a test.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lipt.common.data.sources.rows import ArrayRows
from lipt.common.errors import MissingExtraError

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
    # A line has 64 brightnesses and the label.
    lines_NL = np.loadtxt(_file(), delimiter=",")
    brightness_NCHW = lines_NL[:, :-1].reshape(-1, 1, 8, 8)
    images_NCHW = np.rint(brightness_NCHW * (255 / _MAX_BRIGHTNESS)).astype(np.uint8)
    labels_N = lines_NL[:, -1].astype(np.int64)
    rows = _rows_of(source, labels_N)
    return ArrayRows(
        source=source,
        names=tuple("0123456789"),
        labels_N=torch.from_numpy(labels_N[rows]),
        images_NCHW=images_NCHW[rows],
    )


def _file() -> Path:
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise MissingExtraError("scikit-learn", extra="demo", needed_for="the data set digits")
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"


def _rows_of(source: str, labels_N: NDArray[np.int64]) -> NDArray[np.int64]:
    if source == "digits":
        return np.arange(len(labels_N))
    places_N = np.empty_like(labels_N)  # each row's place among those of its class
    for label in np.unique(labels_N):
        of_class = labels_N == label
        places_N[of_class] = np.arange(of_class.sum())
    is_test_N = places_N % _TEST_EVERY == _TEST_EVERY - 1
    return np.flatnonzero(is_test_N if source == "digits-test" else ~is_test_N)
