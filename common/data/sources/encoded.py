"""Encoded rows: image files, on a disk or inside another file, decoded when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from lipt.common.data.sources.rows import ImageRows
from lipt.common.errors import DataError
from lipt.common.images.decode import check_file, decode_file
from lipt.common.images.formats import Header


@dataclass(frozen=True)
class EncodedRows(ImageRows):
    """Labelled image files; a broken one is named by its row and where it lies.

    Attributes:
        open: gives a row's file, seekable, in any thread; raises OSError or DataError.
        where: says where a person finds a row's file.
    """

    open: Callable[[int], BinaryIO]
    where: Callable[[int], str]
    encoded: ClassVar[bool] = True

    def raw(self, row: int) -> bytes:
        """The file's bytes."""
        with self._located(row), self.open(row) as file:
            return file.read()

    def check(self, row: int) -> Header:
        """The image's format, after a look at the file's header and end."""
        with self._located(row), self.open(row) as file:
            return check_file(file)

    def read(
        self, row: int, channels: int, size: tuple[int, int]
    ) -> tuple[Header, NDArray[np.uint8]]:
        """Decode the image and fit it to `channels` x `size`."""
        with self._located(row), self.open(row) as file:
            return decode_file(file, channels, size)

    @contextmanager
    def _located(self, row: int) -> Iterator[None]:
        try:
            yield
        except (DataError, OSError) as error:
            raise DataError(
                f"image {row} of {self.source} ({self.where(row)}) cannot be used: "
                f"{error}. Replace it, or remove it and open the data again."
            ) from error
