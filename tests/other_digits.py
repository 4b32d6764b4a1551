"""Data sets made of the digits: halves that share no class, and what their runs must never meet."""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.data import open_dataset

Pairs = list[tuple[Tensor, int]]
_DIGITS = open_dataset("digits")
_IMAGES_NCHW, _LABELS_N = _DIGITS.images(torch.arange(len(_DIGITS))), _DIGITS.labels_N


def _pairs(images_NCHW: Tensor, labels_N: Tensor) -> Pairs:
    return list(zip(images_NCHW, labels_N.tolist(), strict=True))


def low() -> Pairs:
    return _pairs(_IMAGES_NCHW[_LABELS_N < 5], _LABELS_N[_LABELS_N < 5])


def high() -> Pairs:
    return _pairs(_IMAGES_NCHW[_LABELS_N >= 5], _LABELS_N[_LABELS_N >= 5] - 5)


def relabelled() -> Pairs:
    return _pairs(_IMAGES_NCHW, (_LABELS_N + 1) % 10)


def enlarged() -> Pairs:
    return _pairs(_IMAGES_NCHW.repeat_interleave(2, 2).repeat_interleave(2, 3), _LABELS_N)
