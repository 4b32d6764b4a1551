"""Image folder: a directory of images for each class, numbered as torchvision numbers them.

torchvision's `ImageFolder` lists the files, so that the ids of a subset mean the
same images in a training script that uses it.
"""

from __future__ import annotations

from pathlib import Path

import torch

from lipt.common.data.sources.encoded import EncodedRows
from lipt.common.data.sources.stamp import Stamp
from lipt.common.errors import DataError


def imagefolder_rows(source: str, path: Path) -> EncodedRows:
    """The images below `path`, classes and files in sorted order.

    Args:
        source: the name under which the user opens them.
        path: holds a directory per class; files with other extensions than torchvision's
            are passed over.

    Raises:
        DataError: there is no such directory, no class in it, or a class without images.
    """
    if not path.is_dir():
        raise DataError(
            f"{source}: there is no directory {path}. Name one that holds a directory of images "
            "for each class."
        )
    from torchvision.datasets import ImageFolder  # noqa: PLC0415 - slow, not always needed

    try:
        folder = ImageFolder(str(path))
    except OSError as error:
        raise DataError(
            f"{source}: {path} cannot be used: {error}. It has to hold a directory for each class "
            "with at least one image in it."
        ) from error
    files = [file for file, _ in folder.samples]
    folders = sorted({str(Path(file).parent) for file in files})
    return EncodedRows(
        source=source,
        names=tuple(folder.classes),
        labels_N=torch.tensor(folder.targets, dtype=torch.int64),
        open=lambda row: Path(files[row]).open("rb"),
        where=files.__getitem__,
        stamp=Stamp.of(files, folders),
    )
