"""Encoded images: files one after another, each decoded when its pixels are first asked for.

Pixels are kept, as a learner asks for all of them in every pass; the files are let go of with the
last one that is decoded.

Shapes: N images, B of a batch, C x H x W pixels as the model sees them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.data.parallel import map_rows, threads_for
from lipt.common.errors import DataError
from lipt.common.images.decode import decode_image
from lipt.common.images.formats import ImageFormat


class EncodedImages:
    """The images of a shard; for one thread at a time.

    Args:
        files: their bytes, one file after another.
        offsets: N + 1, rising from 0 to the end: file i is `files[offsets[i] : offsets[i + 1]]`.
        image: the format that they are decoded to.
    """

    def __init__(
        self, files: NDArray[np.uint8], offsets: Sequence[int], image: ImageFormat
    ) -> None:
        self._files: NDArray[np.uint8] | None = files
        self._offsets = offsets
        self._image = image
        self._missing = set(range(len(offsets) - 1))
        # Memory is taken page by page, as it is written to.
        self._images_NCHW = torch.empty((len(self), *image.shape), dtype=torch.uint8)

    def __len__(self) -> int:
        """How many images there are."""
        return len(self._offsets) - 1

    def rows(self, rows_B: Tensor) -> Tensor:
        """Pixels of some images, uint8 B x C x H x W, on the CPU.

        Args:
            rows_B: their numbers, int64, on the CPU.

        Raises:
            DataError: an image cannot be decoded.
        """
        self._decode(rows_B.tolist())
        return self._images_NCHW[rows_B]

    def all(self) -> Tensor:
        """Pixels of all images, not copied.

        Raises:
            DataError: an image cannot be decoded.
        """
        self._decode(range(len(self)))
        return self._images_NCHW

    def _decode(self, rows: Sequence[int]) -> None:
        files = self._files
        if files is None:
            return
        missing = [row for row in rows if row in self._missing]

        def decode(row: int) -> None:
            file = files[self._offsets[row] : self._offsets[row + 1]].tobytes()
            try:
                self._images_NCHW[row] = decode_image(file, self._image.shape)
            except DataError as error:
                raise DataError(f"image {row} of the shard cannot be used: {error}") from error

        num_threads = threads_for(self._image.height * self._image.width)
        for _ in map_rows(decode, missing, num_threads=num_threads):
            pass
        self._missing.difference_update(missing)
        if not self._missing:
            self._files = None
