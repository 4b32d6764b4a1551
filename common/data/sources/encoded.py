"""Encoded rows: image files, on a disk or inside another file, decoded when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.images.decode import check_file, decode_file
from lipt.common.images.formats import Header


class ImageFiles(Protocol):
    """Image files by row number, readable from several threads."""

    def open(self, row: int) -> BinaryIO:
        """A seekable file. Raises OSError or DataError."""
        ...

    def where(self, row: int) -> str:
        """Where a person finds the file."""
        ...


@dataclass(frozen=True)
class EncodedRows:
    """Labelled image files; a broken one is named by its row and where it lies."""

    source: str
    class_names: tuple[str, ...]
    labels_N: Tensor
    files: ImageFiles
    encoded: bool = True
    concurrent: bool = True

    def __len__(self) -> int:
        return len(self.labels_N)

    def raw(self, row: int) -> bytes:
        """The file's bytes."""
        with self._located(row), self.files.open(row) as file:
            return file.read()

    def check(self, row: int) -> Header:
        """The image's format, after a look at the file's header and end."""
        with self._located(row), self.files.open(row) as file:
            return check_file(file)

    def read(
        self, row: int, channels: int, size: tuple[int, int]
    ) -> tuple[Header, NDArray[np.uint8]]:
        """Decode the image and fit it to `channels` x `size`."""
        with self._located(row), self.files.open(row) as file:
            return decode_file(file, channels, size)

    @contextmanager
    def _located(self, row: int) -> Iterator[None]:
        try:
            yield
        except (DataError, OSError) as error:
            raise DataError(
                f"image {row} of {self.source} ({self.files.where(row)}) cannot be used: "
                f"{error}. Replace it, or remove it and open the data again."
            ) from error
