"""Export of a subset's images to a folder of shards, for training elsewhere.

The folder appears atomically; equal subsets of equal data give equal bytes. `subset.json` in it
loads as the subset. Image files are copied byte for byte; pixels become PNG.

Tar shards (WebDataset): each example has the members ID.cls (class number), ID.jpg or another image
suffix, and ID.json: {"id": row number in the data, "weight": the strategy's}. ID is the row number
in twelve digits. Multi-label and regression examples have a "target" in ID.json instead of ID.cls.
classes.txt, which `webdataset:` reads, has one class name per line.

Source: Aizman, Maltby & Breuel 2019, "High Performance I/O For Large Scale Deep Learning"
(arXiv:2001.01858).
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image, UnidentifiedImageError

from lipt.common.data.parallel import Progress, map_rows
from lipt.common.data.sources.rows import EncodedRows, PixelRows
from lipt.common.data.sources.webdataset import CLASSES
from lipt.common.errors import DataError, SubsetError
from lipt.common.images.formats import FORMATS, to_image
from lipt.trainer.files import new_folder
from lipt.trainer.subsets.data import require_same_data, row_numbers

if TYPE_CHECKING:
    from lipt.common.data import Dataset

# Suffixes of formats whose name is not their suffix.
_SUFFIXES = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif"}
# Concurrent reads from a disk or a network.
_NUM_READERS = 8


class ChosenImage(NamedTuple):
    """One example; `content` is an image file, `target` a class number or a list of numbers."""

    row: int
    weight: float
    target: Any
    content: bytes
    suffix: str


def export_shards(
    subset: Any,
    dataset: Dataset,
    folder: Path,
    examples_per_shard: int,
    on_progress: Progress | None,
) -> list[Path]:
    """Write a `Subset`'s images as shards; see `Subset.to_webdataset`."""
    if examples_per_shard < 1:
        raise SubsetError(
            f"examples_per_shard = {examples_per_shard}: a shard holds at least one example."
        )
    if not len(subset.indices):
        raise SubsetError("the subset is empty, so there is nothing to write. Get another.")
    require_same_data(dataset, subset, check=True)
    count = -(-len(subset.indices) // examples_per_shard)
    names = [f"shard-{number:06d}.tar" for number in range(count)]
    with new_folder(folder) as unfinished:
        images = _chosen_images(subset, dataset, on_progress)
        for name in names:
            # The first image is read before the shard's file is made.
            own = islice(images, examples_per_shard)
            _write_tar(unfinished / name, chain([next(own)], own))
        if dataset.rows.targets is None:
            # Line breaks in a name become spaces, so that line numbers stay class numbers.
            lines = (" ".join(name.splitlines()) + "\n" for name in dataset.class_names)
            # Folder names that are not UTF-8 are escaped.
            content = "".join(lines).encode(errors="backslashreplace")
            (unfinished / CLASSES).write_bytes(content)
        subset.save(unfinished / "subset.json")
    return [folder / name for name in names]


def _chosen_images(
    subset: Any, dataset: Dataset, on_progress: Progress | None
) -> Iterator[ChosenImage]:
    rows = dataset.source_rows
    if isinstance(rows, EncodedRows):
        read = partial(_file_of, rows)
        num_threads = _NUM_READERS if rows.concurrent else 1
    elif isinstance(rows, PixelRows):
        read, num_threads = partial(_png_of, rows), 1
    else:
        raise DataError(
            f"{dataset.source} holds no images, but {dataset.inputs}, and only images are written "
            "out. Take subset.apply(data), or the rows by subset.indices."
        )
    numbers = row_numbers(subset.indices)
    files = map_rows(read, numbers, num_threads=num_threads, progress=on_progress)
    targets = dataset.targets_N
    for row, weight, file in zip(numbers, subset.weights, files, strict=True):
        yield ChosenImage(row, float(weight), targets[row].tolist(), *file)


def _file_of(rows: EncodedRows, row: int) -> tuple[bytes, str]:
    content = rows.raw(row)
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            form = str(opened.format)
            return content, _SUFFIXES.get(form, form.lower())
    except UnidentifiedImageError as error:
        raise DataError(
            f"image {row} of {rows.source} ({rows.where(row)}) is none of "
            f"{', '.join(FORMATS)}. Replace it."
        ) from error


def _png_of(rows: PixelRows, row: int) -> tuple[bytes, str]:
    file = io.BytesIO()
    to_image(rows.pixels(row)).save(file, "PNG")
    return file.getvalue(), "png"


def _write_tar(path: Path, images: Iterator[ChosenImage]) -> None:
    # No times or owners, so that equal images give equal bytes.
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for image in images:
            said: dict[str, Any] = {"id": image.row, "weight": image.weight}
            members = {image.suffix: image.content}
            if isinstance(image.target, int):
                members = {"cls": str(image.target).encode(), **members}
            else:
                said["target"] = image.target
            members["json"] = json.dumps(said).encode()
            for suffix, content in members.items():
                member = tarfile.TarInfo(f"{image.row:012d}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
