"""A subset's images written to a folder of shards, for training elsewhere.

The folder appears whole or not at all; equal subsets of equal data give equal bytes. `subset.json`
in it loads as the subset. Image files are copied byte for byte; pixels become PNG.

Tar shards (WebDataset): each example has the members ID.cls, its class's number; ID.jpg, or the
image's other suffix; and ID.json: {"id": row number in the data, "weight": the strategy's}. ID is
the row number in twelve digits. Examples with several labels, or with numbers, have a "target" in
their .json in place of ID.cls. classes.txt beside the shards, which `webdataset:` reads, has the
name of each class on a line.

Parquet shards (Hugging Face): `image`, a struct of `bytes` and `path`; `label`, int64, with the
classes' names where `datasets` looks for them; `id`, int64, the row number; `weight`, float32.
Examples with several labels, or with numbers, have a list `target` in place of the label.

Source: Aizman, Maltby & Breuel 2019, "High Performance I/O For Large Scale Deep Learning"
(arXiv:2001.01858).
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image, UnidentifiedImageError

from lipt.common.data.parallel import Progress, map_rows
from lipt.common.data.sources.image_files import EncodedRows
from lipt.common.data.sources.rows import PixelRows
from lipt.common.data.sources.webdataset import CLASSES
from lipt.common.errors import DataError, SubsetError
from lipt.common.images.formats import FORMATS
from lipt.trainer.subsets.data import RowNumbers, require_same_data
from lipt.trainer.writing.files import import_pyarrow, making

if TYPE_CHECKING:
    from lipt.common.data import Dataset

_SUFFIXES = {
    "JPEG": "jpg",
    "MPO": "jpg",
    "PNG": "png",
    "PPM": "ppm",
    "BMP": "bmp",
    "TIFF": "tif",
    "WEBP": "webp",
    "GIF": "gif",
}
# Concurrent reads from a disk or a network.
_NUM_READERS = 8
# A Parquet row group's limits, which readers hold in memory.
_ROWS_PER_GROUP = 256
_BYTES_PER_GROUP = 32 * 2**20


class ChosenImage(NamedTuple):
    """One example: `content` is an image file, `target` a class's number, or numbers or labels."""

    row: int
    weight: float
    target: Any
    content: bytes
    suffix: str


WriteShard = Callable[[Path, Iterator[ChosenImage]], None]


def _chosen_images(
    subset: Any, dataset: Dataset, on_progress: Progress | None
) -> Iterator[ChosenImage]:
    """A subset's examples in row order, a few of them in memory at a time."""
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
    numbers = RowNumbers(subset.indices)
    files = map_rows(read, numbers, num_threads=num_threads, progress=on_progress)
    targets = dataset.targets_N
    for row, weight, file in zip(numbers, subset.weights, files, strict=True):
        yield ChosenImage(row, float(weight), targets[row].tolist(), *file)


def _file_of(rows: EncodedRows, row: int) -> tuple[bytes, str]:
    content = rows.raw(row)
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            return content, _SUFFIXES[str(opened.format)]
    except UnidentifiedImageError as error:
        raise DataError(
            f"image {row} of {rows.source} ({rows.where(row)}) is none of "
            f"{', '.join(FORMATS)}. Replace it."
        ) from error


def _png_of(rows: PixelRows, row: int) -> tuple[bytes, str]:
    pixels_CHW = rows.pixels(row)
    pixels = pixels_CHW[0] if len(pixels_CHW) == 1 else pixels_CHW.transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue(), "png"


def _write_tar(path: Path, images: Iterator[ChosenImage]) -> None:
    # Without times and owners: equal images give equal bytes.
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


def _parquet_writer(class_names: Sequence[str], *, of_classes: bool) -> WriteShard:
    arrow, parquet = import_pyarrow("writing Parquet files")
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    if of_classes:
        target = arrow.field("label", arrow.int64())
        features["label"] = {"_type": "ClassLabel", "names": list(class_names)}
    else:
        target = arrow.field("target", arrow.list_(arrow.float32()))
        features["target"] = {"_type": "Sequence", "feature": _value("float32")}
    features |= {"id": _value("int64"), "weight": _value("float32")}
    fields = [
        arrow.field("image", arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])),
        target,
        arrow.field("id", arrow.int64()),
        arrow.field("weight", arrow.float32()),
    ]
    described = json.dumps({"info": {"features": features}})
    schema = arrow.schema(fields, metadata={"huggingface": described})

    def write(path: Path, images: Iterator[ChosenImage]) -> None:
        with parquet.ParquetWriter(path, schema) as writer:
            for group in _groups(images):
                rows = [
                    {
                        "image": {
                            "bytes": image.content,
                            "path": f"{image.row:012d}.{image.suffix}",
                        },
                        target.name: image.target,
                        "id": image.row,
                        "weight": image.weight,
                    }
                    for image in group
                ]
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))

    return write


def _value(dtype: str) -> dict[str, str]:
    return {"_type": "Value", "dtype": dtype}


def _groups(images: Iterator[ChosenImage]) -> Iterator[list[ChosenImage]]:
    for first in images:
        group, size_bytes = [], 0
        for image in chain([first], images):
            group.append(image)
            size_bytes += len(image.content)
            if len(group) == _ROWS_PER_GROUP or size_bytes >= _BYTES_PER_GROUP:
                break
        yield group


def write_webdataset(
    subset: Any,
    dataset: Dataset,
    folder: Path,
    examples_per_shard: int,
    on_progress: Progress | None = None,
) -> list[Path]:
    """Write a subset's images as tar shards; see `Subset.to_webdataset`."""
    beside = {}
    if dataset.rows.targets is None:
        # A name's line breaks become spaces, so that line and number stay the same.
        lines = (" ".join(name.splitlines()) + "\n" for name in dataset.class_names)
        # Folders' names that are not UTF-8 are escaped.
        beside[CLASSES] = "".join(lines).encode(errors="backslashreplace")
    form = "shard-{number:06d}.tar", _write_tar
    return write_out(subset, dataset, folder, *form, examples_per_shard, on_progress, beside)


def write_parquet(
    subset: Any,
    dataset: Dataset,
    folder: Path,
    examples_per_shard: int,
    on_progress: Progress | None = None,
) -> list[Path]:
    """Write a subset's images as Parquet shards; see `Subset.to_parquet`."""
    write = _parquet_writer(dataset.class_names, of_classes=dataset.rows.targets is None)
    name = "train-{number:05d}-of-{count:05d}.parquet"
    return write_out(subset, dataset, folder, name, write, examples_per_shard, on_progress)


def write_out(
    subset: Any,
    dataset: Dataset,
    folder: Path,
    name: str,
    write: WriteShard,
    examples_per_shard: int,
    on_progress: Progress | None = None,
    beside: Mapping[str, bytes] = MappingProxyType({}),
) -> list[Path]:
    """Write a subset's images as shards; errors as of `Subset.to_webdataset`.

    Args:
        subset: a `Subset`, whose module imports this one.
        dataset: the one that it was chosen from.
        folder: a new or empty one.
        name: of a shard, with {number} and {count}.
        write: writes a shard.
        examples_per_shard: at most.
        on_progress: called with (examples done, examples in all).
        beside: other files beside the shards, by name.

    Returns:
        The shards, in order.
    """
    if examples_per_shard < 1:
        raise SubsetError(
            f"examples_per_shard = {examples_per_shard}: a shard holds at least one example."
        )
    if not len(subset.indices):
        raise SubsetError("the subset is empty, so there is nothing to write. Get another.")
    require_same_data(dataset, subset, check=True)
    count = -(-len(subset.indices) // examples_per_shard)
    names = [name.format(number=number, count=count) for number in range(count)]
    with making(folder) as unfinished:
        images = _chosen_images(subset, dataset, on_progress)
        for shard in names:
            # The first is read here, so that no shard begins without one.
            own = islice(images, examples_per_shard)
            write(unfinished / shard, chain([next(own)], own))
        for file, content in beside.items():
            (unfinished / file).write_bytes(content)
        subset.save(unfinished / "subset.json")
    return [folder / shard for shard in names]
