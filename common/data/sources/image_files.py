"""Image files: encoded images, CIFAR, folders of classes, and distilled sets.

`lipt distill` writes a folder with `synthetic.safetensors`: `images_NCHW`, uint8, by stage, then by
class; `labels_N` and `stages_N`, int64 from 0; in its metadata `class_names`, a JSON list, and
`manifest`, JSON of their creation.

Shapes: N images, C channels, H x W pixels.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.data.sources.feature_file import read_tensors
from lipt.common.data.sources.rows import ArrayRows, ImageRows, is_texts, require_labels
from lipt.common.data.sources.storage import Stamp, identity_of, open_regular, walk_once
from lipt.common.errors import DataError
from lipt.common.images.formats import SUFFIXES, Header, check_file, decode_file

FILE_NAME = "synthetic.safetensors"
IMAGES, LABELS, STAGES = "images_NCHW", "labels_N", "stages_N"
CLASS_NAMES, MANIFEST = "class_names", "manifest"

# torchvision's.
_SUFFIXES = tuple(suffix for suffix in SUFFIXES if suffix != ".gif")
_HOW = "It has to hold a directory for each class with at least one image in it."


@dataclass(frozen=True)
class EncodedRows(ImageRows):
    """Labelled image files; `open` may run in any thread, and raises OSError or DataError."""

    open: Callable[[int], BinaryIO]
    where: Callable[[int], str]
    encoded: ClassVar[bool] = True

    def raw(self, row: int) -> bytes:
        with self._file(row) as file:
            return file.read()

    def check(self, row: int) -> Header:
        with self._file(row) as file:
            return check_file(file)

    def read(
        self, row: int, channels: int, size: tuple[int, int]
    ) -> tuple[Header, NDArray[np.uint8]]:
        # In one read: a remote file costs a request for each part.
        with self._file(row) as file:
            return decode_file(io.BytesIO(file.read()), channels, size)

    @contextmanager
    def _file(self, row: int) -> Iterator[BinaryIO]:
        try:
            with self.open(row) as file:
                yield file
        except (DataError, OSError) as error:
            raise DataError(
                f"image {row} of {self.source} ({self.where(row)}) cannot be used: "
                f"{error}. Replace it, or remove it and open the data again."
            ) from error


def cifar_rows(source: str, path: str) -> ArrayRows:
    """CIFAR's images, 3 x 32 x 32, in file order; CIFAR-100's labels are the fine ones.

    `path` is `cifar-10-batches-py` or `cifar-100-python`, or its parent directory. torchvision's
    reader checks every file's digest before it unpickles it.

    Source: Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images".
    """
    from torchvision import datasets  # noqa: PLC0415 - slow to import, and not always needed

    reader = datasets.CIFAR100 if source.startswith("cifar100") else datasets.CIFAR10
    root = Path(path).parent if Path(path).name == reader.base_folder else Path(path)
    stamp = Stamp.of(sorted((root / reader.base_folder).glob("*")))
    try:
        with warnings.catch_warnings():
            # The published pickles predate NumPy 2.4, which warns for each array.
            warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
            data = reader(root, train="-test:" not in source, download=False)
    except (RuntimeError, OSError) as error:
        raise DataError(
            f"{source}: {root / reader.base_folder} is missing, or its files are not the "
            f"published ones ({error}). Download {reader.url} and unpack it in {root}."
        ) from error
    labels_N = torch.tensor(data.targets, dtype=torch.int64)
    images_NCHW = np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))
    return ArrayRows(source, tuple(data.classes), labels_N, images_NCHW, stamp=stamp)


def imagefolder_rows(source: str, path: str) -> EncodedRows:
    """The images in a directory per class, in the order of torchvision's `ImageFolder`."""
    try:
        classes = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
    except OSError as error:
        raise DataError(f"{source}: {path} cannot be used: {error}. {_HOW}") from error
    starts = [Path(path) / name for name in classes]
    root = identity_of(path)
    by_class = [_images_in(start, {root, identity_of(start)}) for start in starts]
    empty = [name for name, files in zip(classes, by_class, strict=True) if not files]
    if empty or not classes:
        lacking = f"no image in {', '.join(empty)}" if empty else "no directory in it"
        raise DataError(f"{source}: {path} cannot be used: there is {lacking}. {_HOW}")
    files = [file for of_class in by_class for file in of_class]
    counts_C = torch.tensor([len(of_class) for of_class in by_class])
    labels_N = torch.arange(len(classes)).repeat_interleave(counts_C)
    stamp = Stamp.of(files, sorted({str(Path(file).parent) for file in files}))
    return EncodedRows(
        *(source, tuple(classes), labels_N),
        open=lambda row: open_regular(files[row]),
        where=files.__getitem__,
        stamp=stamp,
    )


def _images_in(folder: Path, seen: set[tuple[int, int]]) -> list[str]:
    return [
        str(Path(directory) / name)
        for directory, names in walk_once(folder, seen)
        for name in names
        if name.lower().endswith(_SUFFIXES)
    ]


@dataclass(frozen=True)
class DistilledFile:
    """The checked content of `synthetic.safetensors`."""

    images_NCHW: Tensor
    labels_N: Tensor
    stages_N: Tensor
    class_names: tuple[str, ...]
    manifest: dict[str, Any]


def read_distilled(folder: Path) -> DistilledFile:
    path = folder / FILE_NAME

    remedy = "Name a folder of 'lipt distill'."

    def refused(problem: object) -> DataError:
        return DataError(f"{path} is no distilled set: {problem}. {remedy}")

    container = read_tensors(path, remedy)
    try:
        names = json.loads(container.metadata[CLASS_NAMES])
        manifest = json.loads(container.metadata[MANIFEST])
        images, labels, stages = (container.tensor(name) for name in (IMAGES, LABELS, STAGES))
    except (KeyError, ValueError, RecursionError) as error:
        raise refused(f"it lacks a part, or its metadata is not JSON ({error})") from error
    if not is_texts(names) or not isinstance(manifest, dict):
        raise refused(f"{CLASS_NAMES} is not a list of texts, or {MANIFEST} not an object")
    size = len(images) if images.ndim == 4 else 0
    fitting = images.dtype == torch.uint8 and labels.dtype == stages.dtype == torch.int64
    if not size or not fitting or not labels.shape == stages.shape == (size,):
        raise refused(
            f"{IMAGES} is {images.dtype} {list(images.shape)}, {LABELS} {labels.dtype} "
            f"{list(labels.shape)} and {STAGES} {stages.dtype} {list(stages.shape)}"
        )
    numbers = sorted(set(stages.tolist()))
    if numbers != list(range(len(numbers))):
        raise refused("its stages are not numbered from 0")
    require_labels(labels, len(names), str(path))
    return DistilledFile(images, labels, stages, tuple(names), manifest)


def distilled_rows(source: str, path: str) -> ArrayRows:
    stamp = Stamp.of([Path(path) / FILE_NAME])
    found = read_distilled(Path(path))
    images_NCHW = found.images_NCHW.numpy()
    return ArrayRows(source, found.class_names, found.labels_N, images_NCHW, stamp=stamp)
