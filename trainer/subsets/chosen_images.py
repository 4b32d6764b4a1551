"""Chosen images as files: what a subset's examples are where they are written out.

Image files stay byte for byte what they are at the source. What is pixels there, as in an array, is
written as PNG, which loses nothing.

Shapes: N examples of the subset.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from lipt.common.data.parallel import Progress, map_rows
from lipt.common.data.sources.encoded import EncodedRows
from lipt.common.data.sources.rows import PixelRows
from lipt.common.errors import DataError
from lipt.common.images.decode import FORMATS
from lipt.trainer.subsets.row_numbers import RowNumbers

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


class Chosen(Protocol):
    """A subset, as those see it who write out its examples."""

    @property
    def indices(self) -> NDArray[np.int64]:
        """Row numbers, ascending."""
        ...

    @property
    def weights(self) -> NDArray[np.float32]:
        """One per index."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of the data that the indices belong to."""
        ...

    @property
    def manifest(self) -> Mapping[str, Any]:
        """How it came about."""
        ...

    def save(self, path: Path) -> Path:
        """Write the subset's own file."""
        ...


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
        read: Callable[[int], tuple[bytes, str]] = _Files(rows).read
        num_threads = _NUM_READERS if rows.concurrent else 1
    elif isinstance(rows, PixelRows):
        read, num_threads = _Pixels(rows).read, 1
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


@dataclass(frozen=True)
class _Files:
    rows: EncodedRows

    def read(self, row: int) -> tuple[bytes, str]:
        content = self.rows.raw(row)
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
                return content, _SUFFIXES[str(opened.format)]
        except UnidentifiedImageError as error:
            raise DataError(
                f"image {row} of {self.rows.source} ({self.rows.where(row)}) is none of "
                f"{', '.join(FORMATS)}. Replace it."
            ) from error


@dataclass(frozen=True)
class _Pixels:
    rows: PixelRows

    def read(self, row: int) -> tuple[bytes, str]:
        pixels_CHW = self.rows.pixels(row)
        pixels = pixels_CHW[0] if len(pixels_CHW) == 1 else pixels_CHW.transpose(1, 2, 0)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue(), "png"
