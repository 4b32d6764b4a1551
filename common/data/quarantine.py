"""Quarantine: broken images that are excluded, and the mapping of ids around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.data.dataset import Dataset
from lipt.common.data.sources.image_files import EncodedRows
from lipt.common.data.sources.rows import ArrayRows, ImageRows, Rows
from lipt.common.images.formats import Header

# Numbering: how examples are counted where some of a set are left out.
#
# Outside, an example has its row number in the whole set, its id. What is computed goes over the
# others alone, by their places among them.


@dataclass(frozen=True)
class Numbering:
    """Ids and places, the one from the other.

    left_out: the ids that have no place, ascending.
    """

    left_out: tuple[int, ...] = ()

    def ids(self, places: Tensor) -> Tensor:
        """The ids of places, int64 of any shape."""
        return places + torch.searchsorted(self._before, places.contiguous(), right=True)

    def places(self, ids: Tensor) -> Tensor:
        """The places of ids, int64 of any shape, none of which is left out."""
        return ids - torch.searchsorted(self._left_out, ids.contiguous())

    def spread(self, values_N: Tensor, otherwise: Tensor | float) -> Tensor:
        """A value for each id from one for each place.

        Args:
            values_N: N or N x anything, by place.
            otherwise: of those that are left out: one for all, or one for each.
        """
        size = len(values_N) + len(self.left_out)
        spread = values_N.new_empty((size, *values_N.shape[1:]))
        spread[self.ids(torch.arange(len(values_N)))] = values_N
        spread[self._left_out] = torch.as_tensor(otherwise, dtype=values_N.dtype)
        return spread

    def kept(self, values_N: Tensor) -> Tensor:
        """The values of those that have a place, from one for each id; the same where all have."""
        if not self.left_out:
            return values_N
        return values_N[self.ids(torch.arange(len(values_N) - len(self.left_out)))]

    @cached_property
    def _left_out(self) -> Tensor:
        return torch.tensor(self.left_out, dtype=torch.int64)

    @cached_property
    def _before(self) -> Tensor:
        """How many that have a place come before each that has none."""
        return self._left_out - torch.arange(len(self.left_out))


# Quarantine: the few images of a set that cannot be used, and the set without them.


def without_quarantined(dataset: Dataset) -> Dataset:
    """The set of the images that can be used, each at its place among them.

    Its fingerprint is still the whole set's, and `Numbering(dataset.quarantined)` tells ids from
    places. What lies in memory is copied.
    """
    if not dataset.quarantined:
        return dataset
    numbering, reopen = Numbering(dataset.quarantined), dataset.reopen
    left_out = torch.tensor(dataset.quarantined)
    return replace(
        dataset,
        left_out_labels=tuple(dataset.labels_N[left_out].tolist()),
        rows=_kept_rows(dataset.rows, numbering),
        reopen=None if reopen is None else lambda: _kept_rows(reopen(), numbering),
    )


def all_labels(dataset: Dataset) -> Tensor:
    """The label of every id, from a set without those that are left out."""
    if not dataset.quarantined:
        return dataset.labels_N
    left_out = torch.tensor(dataset.left_out_labels)
    return Numbering(dataset.quarantined).spread(dataset.labels_N, left_out)


def _kept_rows(rows: Rows, numbering: Numbering) -> Rows:
    labels_N, targets = numbering.kept(rows.labels_N), rows.targets
    if targets is not None:
        targets = replace(
            targets,
            values=numbering.kept(targets.values),
            strata_N=numbering.kept(targets.strata_N),
        )
    fields = rows.source, rows.class_names, labels_N
    if isinstance(rows, ArrayRows):
        images_NCHW = numbering.kept(torch.from_numpy(rows.images_NCHW)).numpy()
        return ArrayRows(*fields, images_NCHW, stamp=rows.stamp, targets=targets)
    if not isinstance(rows, EncodedRows):
        raise TypeError(f"{type(rows).__name__} in quarantine, which is for image files")
    return KeptRows(*fields, rows, numbering, stamp=rows.stamp, targets=targets)


@dataclass(frozen=True)
class KeptRows(ImageRows):
    """Some image files of a set, by their places.

    Attributes:
        all_rows: those of the set.
        numbering: which of them.
    """

    all_rows: EncodedRows
    numbering: Numbering
    encoded = True

    @property
    def whole(self) -> Rows:
        """The set's."""
        return self.all_rows

    def raw(self, row: int) -> bytes:
        """The file's bytes."""
        return self.all_rows.raw(self._id(row))

    def check(self, row: int) -> Header:
        """The image's format, after a look at the file's header and end."""
        return self.all_rows.check(self._id(row))

    def read(
        self, row: int, channels: int, size: tuple[int, int]
    ) -> tuple[Header, NDArray[np.uint8]]:
        """Decode the image and fit it to `channels` x `size`."""
        return self.all_rows.read(self._id(row), channels, size)

    def _id(self, place: int) -> int:
        return int(self.numbering.ids(torch.tensor(place)))
