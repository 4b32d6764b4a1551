"""Image folder: a directory of images for each class, numbered as torchvision numbers them.

The files are listed as torchvision's `ImageFolder` does, so that the ids of a subset mean the same
images in a training script that uses it. Importing torchvision itself takes as long as torch.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from lipt.common.data.sources.encoded import EncodedRows
from lipt.common.data.sources.stamp import Stamp
from lipt.common.errors import DataError

# torchvision's.
_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
_HOW = "It has to hold a directory for each class with at least one image in it."


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
    try:
        classes = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
        by_class = [_images_in(path / name) for name in classes]
    except OSError as error:
        raise DataError(f"{source}: {path} cannot be used: {error}. {_HOW}") from error
    empty = [name for name, files in zip(classes, by_class, strict=True) if not files]
    if empty or not classes:
        lacking = f"no image in {', '.join(empty)}" if empty else "no directory in it"
        raise DataError(f"{source}: {path} cannot be used: there is {lacking}. {_HOW}")
    files = [file for of_class in by_class for file in of_class]
    folders = sorted({str(Path(file).parent) for file in files})
    return EncodedRows(
        source=source,
        names=tuple(classes),
        labels_N=torch.arange(len(classes)).repeat_interleave(
            torch.tensor([len(of_class) for of_class in by_class])
        ),
        open=lambda row: Path(files[row]).open("rb"),
        where=files.__getitem__,
        stamp=Stamp.of(files, folders),
    )


def _images_in(folder: Path) -> list[str]:
    """The images anywhere below a class's directory, as torchvision orders them."""
    return [
        str(Path(directory) / name)
        for directory, _, names in sorted(os.walk(folder, followlinks=True))
        for name in sorted(names)
        if name.lower().endswith(_SUFFIXES)
    ]
