"""Data set: labelled images by row number, which is the example's id.

Two storages: small sets lie in memory as pixels, the others are read row by row.

Shapes: N examples, B ids, C x H x W pixels as the model sees them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lipt.common.data.parallel import map_rows
from lipt.common.data.sources.rows import Labelled, Rows


class Dataset(Labelled, Protocol):
    """Labelled images, the same ones in the same order every time they are opened."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width as the model sees them."""
        ...

    @property
    def fingerprint(self) -> str:
        """See `lipt.common.data.fingerprinting`."""
        ...

    def __getitem__(self, row: int) -> dict[str, Tensor | bytes]:
        """One example: "image", uint8 C x H x W or an image file's bytes, and "label", int64.

        Raises:
            IndexError: there is no such row.
        """
        ...

    def images(self, ids: Tensor) -> Tensor:
        """Decode examples to what the model sees.

        Args:
            ids: B row numbers, int64, in any order, repeats allowed.

        Returns:
            uint8, B x C x H x W.

        Raises:
            IndexError: a row number is outside 0..N-1.
            DataError: an image can no longer be read.
        """
        ...

    def raw_bytes(self, row: int) -> bytes:
        """What is shipped of an example: an image file, or the bytes of its pixels.

        Raises:
            IndexError: there is no such row.
        """
        ...


@dataclass(frozen=True)
class MemoryDataset:
    """Pixels in memory, at the size that the model sees."""

    source: str
    class_names: tuple[str, ...]
    labels_N: Tensor
    fingerprint: str
    images_NCHW: Tensor

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        _, channels, height, width = self.images_NCHW.shape
        return channels, height, width

    @property
    def encoded(self) -> bool:
        """False: the examples are pixels."""
        return False

    def __len__(self) -> int:
        return len(self.labels_N)

    def __getitem__(self, row: int) -> dict[str, Tensor | bytes]:
        """One example, as pixels."""
        _require_row(row, self)
        return {"image": self.images_NCHW[row], "label": self.labels_N[row]}

    def images(self, ids: Tensor) -> Tensor:
        """The pixels of these rows, copied."""
        _require_ids(ids, self)
        return self.images_NCHW[ids]

    def raw_bytes(self, row: int) -> bytes:
        """The pixels' bytes in C x H x W order."""
        _require_row(row, self)
        return self.images_NCHW[row].numpy().tobytes()


@dataclass(frozen=True)
class RowDataset:
    """A set too large for memory: rows are read and decoded when they are asked for."""

    rows: Rows
    fingerprint: str
    image_shape: tuple[int, int, int]
    num_threads: int

    @property
    def source(self) -> str:
        """The name under which it was opened."""
        return self.rows.source

    @property
    def class_names(self) -> tuple[str, ...]:
        """A name for every label."""
        return self.rows.class_names

    @property
    def labels_N(self) -> Tensor:
        """The labels, int64."""
        return self.rows.labels_N

    @property
    def encoded(self) -> bool:
        """Whether the rows are image files."""
        return self.rows.encoded

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Tensor | bytes]:
        """One example: an image file where the rows are encoded, else pixels."""
        _require_row(row, self)
        label = self.labels_N[row]
        if self.encoded:
            return {"image": self.rows.raw(row), "label": label}
        return {"image": self.images(torch.tensor([row]))[0], "label": label}

    def images(self, ids: Tensor) -> Tensor:
        """Decode these rows, in threads where that pays."""
        _require_ids(ids, self)
        channels, height, width = self.image_shape
        images_BCHW = np.empty((len(ids), channels, height, width), np.uint8)
        # Neighbours may share a block of a file, which is then read once.
        places = ids.argsort(stable=True).tolist()
        rows = ids.tolist()

        def decode(place: int) -> None:
            _, images_BCHW[place] = self.rows.read(rows[place], channels, (height, width))

        for _ in map_rows(decode, places, num_threads=self.num_threads):
            pass
        return torch.from_numpy(images_BCHW)

    def raw_bytes(self, row: int) -> bytes:
        """The image file, or the pixels' bytes where the rows are not encoded."""
        _require_row(row, self)
        if self.encoded:
            return self.rows.raw(row)
        return self.images(torch.tensor([row]))[0].numpy().tobytes()


def _require_row(row: int, dataset: Dataset) -> None:
    if not 0 <= row < len(dataset):
        raise IndexError(f"there is no row {row} in {dataset.source} with {len(dataset)} rows")


def _require_ids(ids: Tensor, dataset: Dataset) -> None:
    if len(ids):
        _require_row(int(ids.min()), dataset)
        _require_row(int(ids.max()), dataset)
