"""Digits: 1,797 handwritten digits inside scikit-learn, which need no network.

Its file is read without importing it: with scipy and pandas that takes a second, in every
process of a demo or a test.
"""

from __future__ import annotations

import numpy as np
import torch

from lipt.common.data.sources.bundled import bundled_file, rows_of_part
from lipt.common.data.sources.rows import ArrayRows
from lipt.common.data.sources.stamp import Stamp
from lipt.common.determinism.seeding import derive_generator

# The file's brightnesses are 0..16.
_MAX_BRIGHTNESS = 16
_NUM_CLASSES = 10

# ImageNet's validation set has 6% (Northcutt et al. 2021, arXiv:2103.14749).
_MISLABELLED_SHARE = 0.05


def digits_rows(source: str) -> ArrayRows:
    """The digits as 1 x 8 x 8 images, their brightness spread over 0..255.

    Args:
        source: "digits" for all 1,797; "digits-test" for every fifth of each class, 355 in
            all, and "digits-train" for the others; "digits-mislabelled" for the latter with
            5% of the labels made wrong on purpose, always the same ones.

    Raises:
        MissingExtraError: scikit-learn is not installed.

    Source: Alpaydin & Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI.
    """
    file = bundled_file("digits.csv.gz", needed_for="the data set digits")
    stamp = Stamp.of([file])
    # A line has 64 brightnesses and the label.
    lines_NL = np.loadtxt(file, delimiter=",")
    brightness_NCHW = lines_NL[:, :-1].reshape(-1, 1, 8, 8)
    images_NCHW = np.rint(brightness_NCHW * (255 / _MAX_BRIGHTNESS)).astype(np.uint8)
    labels_N = lines_NL[:, -1].astype(np.int64)
    # The order of the file is by writer, so every part has digits of all of them.
    rows = rows_of_part(source, labels_N)
    given_N = torch.from_numpy(labels_N[rows])
    return ArrayRows(
        source=source,
        names=tuple("0123456789"),
        labels_N=_with_wrong_labels(given_N) if source == "digits-mislabelled" else given_N,
        images_NCHW=images_NCHW[rows],
        stamp=stamp,
    )


def _with_wrong_labels(labels_N: torch.Tensor) -> torch.Tensor:
    """A copy in which some rows, drawn at random, have another class, each one as likely."""
    generator = derive_generator(0, "digits-mislabelled")
    num_wrong = round(_MISLABELLED_SHARE * len(labels_N))
    rows_W = torch.randperm(len(labels_N), generator=generator)[:num_wrong]
    # Never by a whole turn, which would end where it began.
    further_W = torch.randint(1, _NUM_CLASSES, (num_wrong,), generator=generator)
    wrong_N = labels_N.clone()
    wrong_N[rows_W] = (labels_N[rows_W] + further_W) % _NUM_CLASSES
    return wrong_N
