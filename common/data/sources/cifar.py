"""CIFAR-10 and CIFAR-100: read as their authors distribute them, by torchvision's reader.

torchvision compares every file's digest before it unpickles it.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch

from lipt.common.data.sources.rows import ArrayRows
from lipt.common.data.sources.stamp import Stamp
from lipt.common.errors import DataError


def cifar_rows(source: str, path: Path) -> ArrayRows:
    """The images, 3 x 32 x 32, in their files' order; CIFAR-100's labels are the fine ones.

    Args:
        source: the name under which the user opens them: CIFAR-100 where it begins with
            "cifar100", and the 10,000 test images where it has "-test" before its colon,
            else the 50,000 training images.
        path: the directory that holds `cifar-10-batches-py` or `cifar-100-python`, or that
            directory itself.

    Raises:
        DataError: the files are not there, or differ from the published ones.

    Source: Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images".
    """
    from torchvision import datasets  # noqa: PLC0415 - slow to import, and not always needed

    reader = datasets.CIFAR100 if source.startswith("cifar100") else datasets.CIFAR10
    root = path.parent if path.name == reader.base_folder else path
    stamp = Stamp.of(sorted((root / reader.base_folder).glob("*")))
    try:
        with warnings.catch_warnings():
            # The published pickles predate NumPy 2.4, which says so for each array.
            warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
            data = reader(root, train="-test:" not in source, download=False)
    except (RuntimeError, OSError) as error:
        raise DataError(
            f"{source}: {root / reader.base_folder} is missing, or its files are not the "
            f"published ones ({error}). Download {reader.url} and unpack it in {root}."
        ) from error
    return ArrayRows(
        source=source,
        names=tuple(data.classes),
        labels_N=torch.tensor(data.targets, dtype=torch.int64),
        images_NCHW=np.ascontiguousarray(data.data.transpose(0, 3, 1, 2)),
        stamp=stamp,
    )
