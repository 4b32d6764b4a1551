"""The digits in two halves, which share no class: a backbone of one is fine-tuned on the other."""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.data import open_dataset

Pairs = list[tuple[Tensor, int]]


def low() -> Pairs:
    """The digits 0 to 4."""
    return _from(0)


def high() -> Pairs:
    """The digits 5 to 9, with labels from 0."""
    return _from(5)


def _from(first: int) -> Pairs:
    digits = open_dataset("digits")
    ids = torch.arange(len(digits))[digits.labels_N // 5 == first // 5]
    return list(zip(digits.images(ids), (digits.labels_N[ids] - first).tolist(), strict=True))
