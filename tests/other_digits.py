"""Data sets that are as long as the digits, and others: what a run of digits must never meet."""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.data import open_dataset

Pairs = list[tuple[Tensor, int]]


def relabelled() -> Pairs:
    """The digits, each with the label of the next class: nothing fits less, or looks more alike."""
    digits = open_dataset("digits")
    images_NCHW = digits.images(torch.arange(len(digits)))
    return list(zip(images_NCHW, ((digits.labels_N + 1) % 10).tolist(), strict=True))


def enlarged() -> Pairs:
    """The digits at twice their size."""
    digits = open_dataset("digits")
    images_NCHW = digits.images(torch.arange(len(digits)))
    images_NCHW = images_NCHW.repeat_interleave(2, 2).repeat_interleave(2, 3)
    return list(zip(images_NCHW, digits.labels_N.tolist(), strict=True))
