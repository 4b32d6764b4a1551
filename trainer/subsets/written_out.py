"""Written out: a subset's images in a folder of files, for whoever trains elsewhere.

The folder is there with all that belongs to it, or not at all. Equal subsets of equal data give
equal files, to the byte. `subset.json` in it says what they are and how they came about, and loads
as the subset. Image files stay byte for byte what they are at the source; pixels, as of an array,
become PNG, which loses nothing.

Tar shards (WebDataset): each example has the members ID.cls, its class's number; ID.jpg, or
what else its image is; and ID.json: {"id": row number in the data, "weight": as the strategy gave
it}. ID is the row number in twelve digits. Examples with several labels, or with numbers, have no
class: their .json has a "target" in place of ID.cls. classes.txt beside the shards has the name of
each class on a line, and `webdataset:` reads it.

Parquet shards (Hugging Face): `image`, a struct of `bytes` and `path`; `label`, int64, with the
classes' names where `datasets` looks for them; `id`, int64, the row number in the data; `weight`,
float32. Examples with several labels, or with numbers, have a list `target` in place of the label.

Shapes: N examples of the subset.
Source: Aizman, Maltby & Breuel 2019, "High Performance I/O For Large Scale Deep Learning"
(arXiv:2001.01858).
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from PIL import Image, UnidentifiedImageError

from lipt.common.data.parallel import Progress, map_rows
from lipt.common.data.sources.image_files import EncodedRows
from lipt.common.data.sources.rows import PixelRows
from lipt.common.data.sources.webdataset import CLASSES
from lipt.common.errors import DataError, SubsetError
from lipt.common.images.formats import FORMATS
from lipt.trainer.subsets.data import Chosen, RowNumbers, require_same_data
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
# Files come from a disk or a network, and several are on their way at a time.
_NUM_READERS = 8
_TAR_NAME = "shard-{number:06d}.tar"
_PARQUET_NAME = "train-{number:05d}-of-{count:05d}.parquet"
_SUBSET = "subset.json"
_NEEDED_FOR = "writing Parquet files"
# Parquet rows and bytes that lie in memory at a time, and that a reader reads at a time.
_ROWS_PER_GROUP = 256
_BYTES_PER_GROUP = 32 * 2**20


@dataclass(frozen=True)
class ChosenImage:
    """One example.

    Attributes:
        row: its row number in the data that it was chosen from.
        weight: how much it counts, as the strategy gave it.
        target: its class's number; or the numbers or labels that it has in place of one.
        content: an image file.
        suffix: of such files, without a dot.
    """

    row: int
    weight: float
    target: Any
    content: bytes
    suffix: str


def chosen_images(
    subset: Chosen, dataset: Dataset, on_progress: Progress | None = None
) -> Iterator[ChosenImage]:
    """A subset's examples in the order of their row numbers, a few of them in memory at a time.

    Args:
        subset: chosen from the data.
        dataset: of images.
        on_progress: called with (done, total).

    Raises:
        DataError: an image can no longer be read, or is of no kind that can be told.
    """
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
    files = map_rows(
        read, RowNumbers(subset.indices), num_threads=num_threads, progress=on_progress
    )
    targets = dataset.targets_N
    pairs = zip(subset.indices, subset.weights, files, strict=True)
    for row, weight, (content, suffix) in pairs:
        yield ChosenImage(int(row), float(weight), targets[int(row)].tolist(), content, suffix)


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
    """Write images to a tar file, of no time and no owner: equal images give equal bytes."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for image in images:
            for suffix, content in _members(image):
                member = tarfile.TarInfo(f"{image.row:012d}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def _classes_beside(class_names: Sequence[str]) -> dict[str, bytes]:
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


@dataclass(frozen=True)
class _ParquetShards:
    """Writes shards of one subset.

    Attributes:
        class_names: a name for each label.
        of_classes: whether examples have a class each, and not labels or numbers.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """

    class_names: Sequence[str]
    of_classes: bool

    def __post_init__(self) -> None:
        """Ask for pyarrow before anything is written."""
        import_pyarrow(_NEEDED_FOR)

    def __call__(self, path: Path, images: Iterator[ChosenImage]) -> None:
        arrow, parquet = import_pyarrow(_NEEDED_FOR)
        schema = self._schema(arrow)
        with parquet.ParquetWriter(path, schema) as writer:
            for group in _groups(images):
                writer.write_table(arrow.Table.from_pylist(list(map(_row, group)), schema=schema))

    def _schema(self, arrow: Any) -> Any:
        image = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
        features: dict[str, Any] = {"image": {"_type": "Image"}}
        if self.of_classes:
            target = arrow.field("label", arrow.int64())
            features["label"] = {"_type": "ClassLabel", "names": list(self.class_names)}
        else:
            target = arrow.field("target", arrow.list_(arrow.float32()))
            features["target"] = {"_type": "Sequence", "feature": _value("float32")}
        features |= {"id": _value("int64"), "weight": _value("float32")}
        columns = [arrow.field("id", arrow.int64()), arrow.field("weight", arrow.float32())]
        described = json.dumps({"info": {"features": features}})
        return arrow.schema(
            [arrow.field("image", image), target, *columns], metadata={"huggingface": described}
        )


def _value(dtype: str) -> dict[str, str]:
    return {"_type": "Value", "dtype": dtype}


def _row(image: ChosenImage) -> dict[str, Any]:
    file = {"bytes": image.content, "path": f"{image.row:012d}.{image.suffix}"}
    named = "label" if isinstance(image.target, int) else "target"
    return {"image": file, named: image.target, "id": image.row, "weight": image.weight}


def _groups(images: Iterator[ChosenImage]) -> Iterator[list[ChosenImage]]:
    """Images in groups that end at so many rows or bytes."""
    for first in images:
        group, size_bytes = [], 0
        for image in chain([first], images):
            group.append(image)
            size_bytes += len(image.content)
            if len(group) == _ROWS_PER_GROUP or size_bytes >= _BYTES_PER_GROUP:
                break
        yield group


def write_webdataset(
    subset: Chosen,
    dataset: Dataset,
    folder: Path,
    examples_per_shard: int,
    on_progress: Progress | None = None,
) -> list[Path]:
    """Write a subset's images as tar shards; arguments and errors as of `write_out`."""
    of_classes = dataset.rows.targets is None
    beside = _classes_beside(dataset.class_names) if of_classes else {}
    form = _TAR_NAME, _write_tar
    return write_out(subset, dataset, folder, *form, examples_per_shard, on_progress, beside)


def write_parquet(
    subset: Chosen,
    dataset: Dataset,
    folder: Path,
    examples_per_shard: int,
    on_progress: Progress | None = None,
) -> list[Path]:
    """Write a subset's images as Parquet shards; arguments and errors as of `write_out`.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    of_classes = dataset.rows.targets is None
    form = _PARQUET_NAME, _ParquetShards(dataset.class_names, of_classes=of_classes)
    return write_out(subset, dataset, folder, *form, examples_per_shard, on_progress)


def write_out(
    subset: Chosen,
    dataset: Dataset,
    folder: Path,
    name: str,
    write: Callable[[Path, Iterator[ChosenImage]], None],
    examples_per_shard: int,
    on_progress: Progress | None = None,
    beside: Mapping[str, bytes] = MappingProxyType({}),
) -> list[Path]:
    """Write a subset's images as shards.

    Args:
        subset: whose examples.
        dataset: that it was chosen from.
        folder: to be made; may be there as long as it is empty.
        name: of a shard, in which {number} and {count} stand for its own number and for how many
            there are.
        write: what writes a shard.
        examples_per_shard: how many examples go into one, at most.
        on_progress: called with (examples done, examples in all).
        beside: what else is to lie beside the shards, by its name.

    Returns:
        The shards, in order.

    Raises:
        SubsetError: the subset is empty, is of other data, or shards are to hold none.
        DataError: an example can no longer be read, or is no image.
        FileExistsError: there is something in the folder.
        OSError: it cannot be written.
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
        images = chosen_images(subset, dataset, on_progress)
        for shard in names:
            # The first is asked for here, so that none begins that has nothing in it.
            own = islice(images, examples_per_shard)
            write(unfinished / shard, chain([next(own)], own))
        for file, content in beside.items():
            (unfinished / file).write_bytes(content)
        subset.save(unfinished / _SUBSET)
    return [folder / shard for shard in names]
