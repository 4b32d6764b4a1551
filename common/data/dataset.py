"""Data set: a map from a row number, which is the example's id, to a labelled example.

Images stay in memory as pixels if they fit, and are otherwise read and decoded on demand. Other
examples stay in memory. Broken images are excluded: callers still use ids, row numbers in the whole
set, while computations use positions among the rest. `Numbering` maps between them.

Shapes: N examples, B ids, C x H x W pixels as the model sees them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.config.run_config import FingerprintKind
from lipt.common.data.parallel import map_rows
from lipt.common.data.sources.image_files import EncodedRows
from lipt.common.data.sources.index import Stamp
from lipt.common.data.sources.rows import ArrayRows, ColumnRows, ImageRows, Rows
from lipt.common.errors import DataError
from lipt.common.images.formats import Header
from lipt.common.inputs.model_input import Stored, rows_of
from lipt.common.inputs.specs import ImageSpec, InputSpec
from lipt.common.targets.values import SingleLabel, Target, TargetValues


@dataclass(frozen=True)
class Dataset:
    """Labelled examples, the same ones in the same order every time they are opened.

    Attributes:
        fingerprint: the sampled one; see `lipt.common.data.fingerprinting`.
        stamp: of the source's files; None without files.
        read_all: computes the full fingerprint at the source; None takes `rows`.
        reopen: reopens the source's rows; None where `rows` are the source's.
        scaling: clause on the image size and the cost of scaling; empty without scaling.
        quarantined: ids of images that cannot be used, ascending.
        left_out_labels: the labels of these, where they are excluded.
    """

    rows: Rows
    fingerprint: str
    inputs: InputSpec
    num_threads: int = 1
    stamp: Stamp | None = None
    read_all: Callable[[], str] | None = None
    reopen: Callable[[], Rows] | None = None
    scaling: str = ""
    quarantined: tuple[int, ...] = ()
    left_out_labels: tuple[int, ...] = ()

    @property
    def source(self) -> str:
        """The name that opened it."""
        return self.rows.source

    @property
    def class_names(self) -> tuple[str, ...]:
        """A name for every label."""
        return self.rows.class_names

    @property
    def labels_N(self) -> Tensor:
        """The labels, int64, on the CPU; strata if examples have no single class."""
        return self.rows.labels_N

    @property
    def target(self) -> Target:
        """A model's target."""
        given = self.rows.targets
        return SingleLabel(len(self.class_names)) if given is None else given.target

    @property
    def targets_N(self) -> Tensor:
        """Each example's target: labels, or N x T; on the CPU."""
        return self.labels_N if self.rows.targets is None else self.rows.targets.values

    @property
    def encoded(self) -> bool:
        """Whether examples are image files rather than pixels."""
        return self.rows.encoded

    @property
    def in_memory(self) -> bool:
        """Whether reading a stored example only indexes a tensor."""
        rows = self.rows
        if isinstance(rows, ArrayRows) and isinstance(self.inputs, ImageSpec):
            return rows.images_NCHW.shape[1:] == self.inputs.shape
        return isinstance(rows, ColumnRows)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def numbering(self) -> Numbering:
        """The id mapping, where unusable images are excluded."""
        return Numbering(self.quarantined)

    @property
    def num_ids(self) -> int:
        """All examples of the source, excluded ones too; ids are below it."""
        return len(self) + len(self.quarantined)

    @cached_property
    def source_rows(self) -> Rows:
        """The source's rows: not scaled, and files if images are encoded."""
        return self.rows if self.reopen is None else self.reopen()

    @cached_property
    def full_fingerprint(self) -> str:
        """The full fingerprint; reads every row."""
        if self.read_all is not None:
            return self.read_all()
        return self.rows.whole.fingerprint(FingerprintKind.FULL)

    def fingerprint_like(self, other: str) -> str:
        """The fingerprint of the same kind as `other`, for comparison."""
        full = FingerprintKind.of(other) is FingerprintKind.FULL
        return self.full_fingerprint if full else self.fingerprint

    def has_changed(self) -> bool:
        """Whether the source has changed, by its stamp, or sampled rows of a user's images."""
        if self.stamp is not None:
            return not self.stamp.holds()
        if isinstance(self.rows, ArrayRows | ColumnRows):
            return False
        try:
            return self.rows.whole.fingerprint() != self.fingerprint
        except DataError:
            return True

    def __getitem__(self, row: int) -> dict[str, Tensor | bytes]:
        """One example: its tensors by name, and "label", int64.

        An image is "image", uint8 C x H x W or a file's bytes; a nameless tensor is "input".
        """
        label = {"label": self.labels_N[row]}
        if self.encoded:
            return {"image": self.raw_bytes(row), **label}
        stored = self.examples(torch.tensor([row]))
        if isinstance(stored, Tensor):
            return {"image": stored[0], **label}
        return {**{name or "input": tensor[0] for name, tensor in stored.items()}, **label}

    def examples(self, ids: Tensor) -> Stored:
        """Stored examples: uint8 images, B x C x H x W, or a tensor for each column.

        `ids` are B row numbers, int64, in any order, with repeats. Raises IndexError for a row
        outside 0..N-1, and DataError for an unreadable image.
        """
        if not isinstance(self.rows, ColumnRows):
            return self.images(ids)
        self._require_rows(ids)
        return rows_of(dict(self.rows.tensors), ids)

    def images(self, ids: Tensor) -> Tensor:
        """Images at the model's size, uint8 B x C x H x W; as `examples`."""
        rows, inputs = self.rows, self.inputs
        if not isinstance(rows, ImageRows) or not isinstance(inputs, ImageSpec):
            raise DataError(f"{self.source} holds no images, but {inputs}. Open an image set.")
        self._require_rows(ids)
        channels, height, width = inputs.shape
        if isinstance(rows, ArrayRows) and self.in_memory:
            return torch.from_numpy(rows.images_NCHW)[ids]
        images_BCHW = np.empty((len(ids), channels, height, width), np.uint8)
        # Sorted: neighbours may share a block of a file, which is then read once.
        places = ids.argsort(stable=True).tolist()
        numbers = ids.tolist()

        def decode(place: int) -> None:
            _, images_BCHW[place] = rows.read(numbers[place], channels, (height, width))

        for _ in map_rows(decode, places, num_threads=self.num_threads):
            pass
        return torch.from_numpy(images_BCHW)

    def raw_bytes(self, row: int) -> bytes:
        """An image file, or the bytes of an example's pixels or values."""
        self._require_rows(torch.tensor([row]))
        if self.encoded or isinstance(self.rows, ColumnRows):
            return self.rows.raw(row)
        return self.images(torch.tensor([row])).numpy().tobytes()

    def _require_rows(self, ids: Tensor) -> None:
        for row in map(int, (ids.min(), ids.max()) if len(ids) else ()):
            if not 0 <= row < len(self):
                raise IndexError(f"there is no row {row} in {self.source} with {len(self)} rows")


def in_memory(
    source: str,
    class_names: tuple[str, ...],
    labels_N: Tensor,
    fingerprint: str,
    images_NCHW: Tensor,
    *,
    targets: TargetValues | None = None,
) -> Dataset:
    """A data set of pixels at the size that the model sees, uint8."""
    rows = ArrayRows(source, class_names, labels_N, images_NCHW.numpy(), targets=targets)
    return Dataset(rows, fingerprint, ImageSpec(*images_NCHW.shape[1:]))


@dataclass(frozen=True)
class Numbering:
    """Id mapping; positions skip the excluded ids `left_out`, which are ascending."""

    left_out: tuple[int, ...] = ()

    def ids(self, places: Tensor) -> Tensor:
        """The ids of positions, int64 of any shape."""
        return places + torch.searchsorted(self._before, places.contiguous(), right=True)

    def places(self, ids: Tensor) -> Tensor:
        """The positions of ids that are not excluded, int64 of any shape."""
        return ids - torch.searchsorted(self._left_out, ids.contiguous())

    def spread(self, values_N: Tensor, otherwise: Tensor | float) -> Tensor:
        """Values by id from values by position; excluded ids get `otherwise`, one or one each."""
        size = len(values_N) + len(self.left_out)
        spread = values_N.new_empty((size, *values_N.shape[1:]))
        spread[self.ids(torch.arange(len(values_N)))] = values_N
        spread[self._left_out] = torch.as_tensor(otherwise, dtype=values_N.dtype)
        return spread

    def kept(self, values_N: Tensor) -> Tensor:
        """Values by position from values by id; the same tensor if none is excluded."""
        if not self.left_out:
            return values_N
        return values_N[self.ids(torch.arange(len(values_N) - len(self.left_out)))]

    @cached_property
    def _left_out(self) -> Tensor:
        return torch.tensor(self.left_out, dtype=torch.int64)

    @cached_property
    def _before(self) -> Tensor:
        """The number of positions before each excluded id."""
        return self._left_out - torch.arange(len(self.left_out))


def without_quarantined(dataset: Dataset) -> Dataset:
    """The usable images; keeps the whole set's fingerprint, and copies pixels in memory."""
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
    """The labels of all ids, from a set without the excluded ones."""
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
    return _KeptRows(*fields, rows, numbering, stamp=rows.stamp, targets=targets)


@dataclass(frozen=True)
class _KeptRows(ImageRows):
    """A subset of image files, by position."""

    all_rows: EncodedRows
    numbering: Numbering
    encoded = True

    @property
    def whole(self) -> Rows:
        return self.all_rows

    def raw(self, row: int) -> bytes:
        return self.all_rows.raw(self._id(row))

    def check(self, row: int) -> Header:
        return self.all_rows.check(self._id(row))

    def read(
        self, row: int, channels: int, size: tuple[int, int]
    ) -> tuple[Header, NDArray[np.uint8]]:
        return self.all_rows.read(self._id(row), channels, size)

    def _id(self, place: int) -> int:
        return int(self.numbering.ids(torch.tensor(place)))
