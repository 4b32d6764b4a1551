"""Tar shards: a subset's images in WebDataset's convention.

Each example has the members ID.cls, its class's number; ID.jpg, or what else its image is; and
ID.json: {"id": row number in the data, "weight": as the strategy gave it}. ID is the row number in
twelve digits. Examples with several labels, or with numbers, have no class: their .json has a
"target" in place of ID.cls.

Shards cannot say what their classes are called, nor that there are some of which the subset has no
example: classes.txt beside them has the name of each on a line, and `webdataset:` reads it.

Source: Aizman, Maltby & Breuel 2019, "High Performance I/O For Large Scale Deep Learning"
(arXiv:2001.01858).
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lipt.common.data.sources.webdataset import CLASSES
from lipt.trainer.subsets.chosen_images import ChosenImage

NAME = "shard-{number:06d}.tar"


def write_tar(path: Path, images: Iterator[ChosenImage]) -> None:
    """Write images to a tar file, of no time and no owner: equal images give equal bytes."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for image in images:
            for suffix, content in _members(image):
                member = tarfile.TarInfo(f"{image.row:012d}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def classes_beside(class_names: Sequence[str]) -> dict[str, bytes]:
    """The file that names the classes, by its name.

    A name's line breaks become spaces, so that line and number stay the same. What is no UTF-8,
    as in names of folders, is written as its escape sequence.
    """
    lines = (" ".join(name.splitlines()) for name in class_names)
    content = "".join(f"{line}\n" for line in lines)
    return {CLASSES: content.encode(errors="backslashreplace")}


def _members(image: ChosenImage) -> Iterator[tuple[str, bytes]]:
    said: dict[str, Any] = {"id": image.row, "weight": image.weight}
    if isinstance(image.target, int):
        yield "cls", str(image.target).encode()
    else:
        said["target"] = image.target
    yield image.suffix, image.content
    yield "json", json.dumps(said).encode()
