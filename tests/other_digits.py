"""Data sets made of the digits: halves that share no class, and what their runs must never meet."""

from collections.abc import Mapping
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from lipt.data.loading import open_dataset

Pairs = list[tuple[Tensor, int]]
_DIGITS = open_dataset("digits")
_IMAGES_NCHW, LABELS_N = _DIGITS.images(torch.arange(len(_DIGITS))), _DIGITS.labels_N


def _pairs(images_NCHW: Tensor, labels_N: Tensor) -> Pairs:
    return list(zip(images_NCHW, labels_N.tolist(), strict=True))


def low() -> Pairs:
    return _pairs(_IMAGES_NCHW[LABELS_N < 5], LABELS_N[LABELS_N < 5])


def high() -> Pairs:
    return _pairs(_IMAGES_NCHW[LABELS_N >= 5], LABELS_N[LABELS_N >= 5] - 5)


def relabelled() -> Pairs:
    return _pairs(_IMAGES_NCHW, (LABELS_N + 1) % 10)


def enlarged() -> Pairs:
    return _pairs(_IMAGES_NCHW.repeat_interleave(2, 2).repeat_interleave(2, 3), LABELS_N)


def write_digits(folder: Path, labels: Mapping[int, object], *, scale: int = 1) -> list[Path]:
    """PNG files of some digits, by their rows, in a directory for each label."""
    for row, label in labels.items():
        path = folder / str(label) / f"{row:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = _IMAGES_NCHW[row, 0].repeat_interleave(scale, 0).repeat_interleave(scale, 1)
        Image.fromarray(pixels.numpy()).save(path)
    return sorted(folder.rglob("*.png"))
