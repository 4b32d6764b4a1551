"""Rows: a source's examples by number, before resizing, as NumPy arrays; and their fingerprint.

A fingerprint travels with every subset, and is compared before indices are applied to data. It is
the lower-case hexadecimal SHA-256 of these bytes:

    b"lipt-dataset-1"
    N and C                       number of rows and of classes, uint64 little-endian each
    the N labels, in row order    int64 little-endian each; where examples have no single class
                                  their strata, then b"labels", b"numbers" or b"tokens", their
                                  number T as uint64 little-endian, and N x T uint8, float32 or
                                  float64 as they are stored, or int64, little-endian
    with sources                  b"sources", their names, each ended by a NUL, and each row's
                                  source as int64, little-endian
    for each sampled row r        r and its raw bytes' length, uint64 little-endian each,
                                  then the raw bytes

Raw bytes are the image file or, without files, uint8 pixels in C x H x W order at their own size.
Decoder, image size and class names do not matter. All rows are sampled for N <= 64, else floor(i
(N-1) / 63) for i = 0..63. Changes of other rows are missed.

Shapes: N examples, C channels or classes, H x W pixels, T targets, P features of another half.
"""

from __future__ import annotations

import hashlib
import io
import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import BinaryIO, ClassVar, NamedTuple, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.text import encodable
from lipt.data.images.formats import Header, check_file, decode_file, fit_pixels
from lipt.data.inputs.model_input import Stored, rows_of
from lipt.data.inputs.specs import Column, ColumnsSpec, ImageSpec, InputSpec
from lipt.data.parallel import map_rows
from lipt.data.sources.cells import ColumnReading
from lipt.data.sources.storage import Stamp
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import MultiLabel, TargetValues, readable_names

logger = logging.getLogger(__name__)

# A larger label is a mistake: no labelled image set has more classes.
_MAX_CLASSES = 100_000
_NUM_SAMPLED_ROWS = 64
MAX_SOURCES = 64
# As of the sources of workers and their tokens.
LONGEST_SOURCE = 200
_TARGET_TAGS = {
    TargetKind.CLASSES: b"labels",
    TargetKind.NUMBER: b"numbers",
    TargetKind.TOKENS: b"tokens",
}
# Probabilities in half precision add up to 1 by so much.
_ROUNDED = 0.01


class SourceLabels(NamedTuple):
    """The sources that a data set is mixed of: names, and each row's place among them, int64."""

    names: tuple[str, ...]
    places_N: Tensor


def source_names(names: Sequence[str], where: str) -> tuple[str, ...]:
    """Names with escapes for what is not UTF-8; DataError for too many, empty or long ones."""
    if not 1 <= len(names) <= MAX_SOURCES:
        raise DataError(
            f"{where} names {len(names)} sources. Give from 1 to {MAX_SOURCES}, and join those "
            "that are alike."
        )
    for name in names:
        if not 1 <= len(name) <= LONGEST_SOURCE:
            raise DataError(
                f"{where}: the source {name!r:.60} has a name of {len(name)} characters. Name it "
                f"in 1 to {LONGEST_SOURCE}."
            )
    return tuple(map(encodable, names))


def fingerprint(
    labels_N: Tensor,
    num_classes: int,
    raw: Callable[[int], bytes],
    *,
    targets: TargetValues | None = None,
    sources: SourceLabels | None = None,
) -> str:
    num_rows = len(labels_N)
    digest = hashlib.sha256(b"lipt-dataset-1")
    digest.update(struct.pack("<QQ", num_rows, num_classes))
    digest.update(labels_N.numpy().astype("<i8").tobytes())
    if targets is not None:
        digest.update(_TARGET_TAGS[targets.target.kind])
        digest.update(struct.pack("<Q", targets.values.shape[1]))
        digest.update(targets.values.numpy().tobytes())
    if sources is not None:
        digest.update(b"sources" + b"".join(name.encode() + b"\0" for name in sources.names))
        digest.update(sources.places_N.numpy().astype("<i8").tobytes())
    for row in sampled_rows(num_rows):
        data = raw(row)
        digest.update(struct.pack("<QQ", row, len(data)))
        digest.update(data)
    return digest.hexdigest()


def sampled_rows(num_rows: int) -> list[int]:
    """64 evenly spaced rows from the first to the last."""
    if num_rows <= _NUM_SAMPLED_ROWS:
        return list(range(num_rows))
    last = _NUM_SAMPLED_ROWS - 1
    return [i * (num_rows - 1) // last for i in range(_NUM_SAMPLED_ROWS)]


@dataclass(frozen=True)
class Rows(ABC):
    """Labelled examples by row number.

    The rows of a user's images return their labels: `labels_N`, `names` and `targets` are then
    known after `complete`.

    Attributes:
        names: the class names; None numbers the classes.
        labels_N: int64, on the CPU; with `targets`, the stratum of each example.
        stamp: of the source's files, before reading; None without files.
        targets: of examples without a single class.
        sources: of data that is mixed of several; None without.
        note: a clause on ignored files, missing numbers or unused columns; empty without any.
        files: each row's own file; None where rows are no files of their own.
        encoded: whether rows are image files rather than values.
        concurrent: whether several threads may read rows.
        held: whether rows are in memory, and so never change.
        reading: how a table's columns were read; empty for other data.
    """

    source: str
    names: tuple[str, ...] | None
    labels_N: Tensor
    stamp: Stamp | None = field(default=None, kw_only=True)
    targets: TargetValues | None = field(default=None, kw_only=True)
    sources: SourceLabels | None = field(default=None, kw_only=True)
    note: str = field(default="", kw_only=True)
    files: Sequence[str] | None = field(default=None, kw_only=True)
    reading: tuple[ColumnReading, ...] = field(default=(), kw_only=True)
    encoded: ClassVar[bool] = False
    concurrent: ClassVar[bool] = True
    held: ClassVar[bool] = False

    def __post_init__(self) -> None:
        # Messages, records and pages take only text that can be encoded.
        names = None if self.names is None else readable_names(self.names, self.source)
        for name, value in (("source", encodable(self.source)), ("names", names)):
            object.__setattr__(self, name, value)

    @property
    def class_names(self) -> tuple[str, ...]:
        """A name for every label: the source's own, or numbers up to the largest label."""
        if self.targets is not None:
            return self.targets.strata_names
        return numbered_classes(self.labels_N, self.source) if self.names is None else self.names

    def __len__(self) -> int:
        return len(self.labels_N)

    def complete(self) -> None:  # noqa: B027 - nothing is left to do
        """Read the labels of rows that return them; DataError where two reads of a row differ."""

    def fingerprint(self) -> str:
        classes = len(self.class_names)
        return fingerprint(
            self.labels_N, classes, self.raw, targets=self.targets, sources=self.sources
        )

    @abstractmethod
    def raw(self, row: int) -> bytes:
        """The source's bytes of a row: an image file, or all values."""

    def raw_rows(self, rows_B: Tensor) -> NDArray[np.uint8]:  # noqa: ARG002 - of columns alone
        """The bytes of several rows' values, of equal length; B x bytes."""
        raise DataError(f"{self.source} holds images, not columns. Use raw_bytes.")

    @abstractmethod
    def examples(self, rows_B: Tensor, inputs: InputSpec, num_threads: int) -> Stored:
        """Rows as stored examples of `inputs`."""

    def stores(self, inputs: InputSpec) -> bool:  # noqa: ARG002 - of rows in memory
        """Whether reading examples of `inputs` only indexes a tensor."""
        return False

    def like(
        self,
        target: InputSpec,  # noqa: ARG002
        inputs: InputSpec,
        *,
        flagged: bool,  # noqa: ARG002
    ) -> tuple[Rows, InputSpec]:
        """Rows of `inputs` in the form of a training set's, and their inputs then."""
        return self, inputs


class ImageRows(Rows):
    """Labelled images; a broken one raises a DataError with its name."""

    @abstractmethod
    def check(self, row: int) -> Header:
        """The image's format, after a cheap check of its file."""

    @abstractmethod
    def read(
        self, row: int, channels: int, size: tuple[int, int]
    ) -> tuple[Header, NDArray[np.uint8]]:
        """Decode the image and fit it to `channels` x `size` (height, width)."""

    def examples(self, rows_B: Tensor, inputs: InputSpec, num_threads: int) -> Tensor:
        channels, *size = inputs.shape if isinstance(inputs, ImageSpec) else (0, 0, 0)
        return self.batch(rows_B.tolist(), channels, (size[0], size[1]), num_threads)

    def batch(
        self, numbers: Sequence[int], channels: int, size: tuple[int, int], num_threads: int
    ) -> Tensor:
        """Some images, uint8 B x C x H x W."""
        images_BCHW = np.empty((len(numbers), channels, *size), np.uint8)

        def decode(place: int) -> None:
            _, images_BCHW[place] = self.read(numbers[place], channels, size)

        # Sorted: neighbours may share a block of a file, which is then read once.
        places = sorted(range(len(numbers)), key=numbers.__getitem__)
        for _ in map_rows(decode, places, num_threads=num_threads):
            pass
        return torch.from_numpy(images_BCHW)


class PixelRows(ImageRows):
    """Images that need no decoding."""

    @abstractmethod
    def pixels(self, row: int) -> NDArray[np.uint8]:
        """The pixels at their own size, C x H x W."""

    def raw(self, row: int) -> bytes:
        data: bytes = self.pixels(row).tobytes()
        return data

    def check(self, row: int) -> Header:
        return _header(self.pixels(row))

    def read(
        self, row: int, channels: int, size: tuple[int, int]
    ) -> tuple[Header, NDArray[np.uint8]]:
        pixels_CHW = self.pixels(row)
        return _header(pixels_CHW), fit_pixels(pixels_CHW, channels, size)


def _header(pixels_CHW: NDArray[np.uint8]) -> Header:
    channels, height, width = pixels_CHW.shape
    return Header(height, width, grayscale=channels == 1)


@dataclass(frozen=True)
class ArrayRows(PixelRows):
    """Images of one size in memory."""

    images_NCHW: NDArray[np.uint8]
    held: ClassVar[bool] = True

    def stores(self, inputs: InputSpec) -> bool:
        return isinstance(inputs, ImageSpec) and self.images_NCHW.shape[1:] == inputs.shape

    def examples(self, rows_B: Tensor, inputs: InputSpec, num_threads: int) -> Tensor:
        if self.stores(inputs):
            return torch.from_numpy(self.images_NCHW)[rows_B]
        return super().examples(rows_B, inputs, num_threads)

    def pixels(self, row: int) -> NDArray[np.uint8]:
        pixels_CHW: NDArray[np.uint8] = self.images_NCHW[row]
        return pixels_CHW


@dataclass(frozen=True)
class EncodedRows(ImageRows):
    """Labelled image files; `open` may run in any thread, and raises OSError or DataError.

    `empty_folders` are directories of classes without any image.
    """

    open: Callable[[int], BinaryIO]
    where: Callable[[int], str]
    empty_folders: tuple[str, ...] = ()
    encoded: ClassVar[bool] = True

    def raw(self, row: int) -> bytes:
        with self._file(row) as file:
            return file.read()

    def check(self, row: int) -> Header:
        with self._file(row) as file:
            return check_file(file)

    def read(
        self, row: int, channels: int, size: tuple[int, int]
    ) -> tuple[Header, NDArray[np.uint8]]:
        # In one read: a remote file costs a request for each part.
        with self._file(row) as file:
            return decode_file(io.BytesIO(file.read()), channels, size)

    @contextmanager
    def _file(self, row: int) -> Iterator[BinaryIO]:
        try:
            with self.open(row) as file:
                yield file
        except (DataError, OSError) as error:
            raise DataError(
                f"image {row} of {self.source} ({self.where(row)}) cannot be used: "
                f"{error}. Replace it, or remove it and open the data again."
            ) from error


@dataclass(frozen=True)
class ColumnRows(Rows):
    """Examples other than images, in memory; `tensors` are N x shape by column, on the CPU.

    `paired_NP` are the other halves of pairs, float32, which are no model's input. `flagged` is
    whether the second half of the numbers, the first column, flags missing ones of the first half.
    """

    columns: tuple[Column, ...]
    tensors: Mapping[str, Tensor]
    paired_NP: Tensor | None = None
    flagged: bool = False
    held: ClassVar[bool] = True

    def stores(self, inputs: InputSpec) -> bool:  # noqa: ARG002 - always
        return True

    def examples(self, rows_B: Tensor, inputs: InputSpec, num_threads: int) -> Stored:  # noqa: ARG002
        return rows_of(dict(self.tensors), rows_B)

    def like(
        self, target: InputSpec, inputs: InputSpec, *, flagged: bool
    ) -> tuple[Rows, InputSpec]:
        """With or without flags, and standardized numbers of the same type, as in `target`."""
        if not isinstance(target, ColumnsSpec):
            return self, inputs
        columns, tensors = self.columns, dict(self.tensors)
        if self.flagged != flagged:
            first, *rest = columns
            values_ND = tensors[first.name]
            if flagged:
                values_ND = torch.cat([values_ND, torch.zeros_like(values_ND)], dim=1)
            else:
                values_ND = values_ND[:, : values_ND.shape[1] // 2]
            columns = (replace(first, shape=(values_ND.shape[1],)), *rest)
            tensors[first.name] = values_ND
        # Float64 where the training set's differences need it.
        types = {column.name: column.type for column in target.columns if column.standardized}
        columns = tuple(
            replace(column, type=types.get(column.name, column.type))
            if column.standardized
            else column
            for column in columns
        )
        tensors = {column.name: tensors[column.name].to(column.type.dtype) for column in columns}
        rows = replace(self, columns=columns, tensors=tensors, flagged=flagged)
        return rows, ColumnsSpec(columns)

    def raw(self, row: int) -> bytes:
        """The bytes of the row's values, column by column, little-endian; then its other half."""
        return self.raw_rows(torch.tensor([row])).tobytes()

    def raw_rows(self, rows_B: Tensor) -> NDArray[np.uint8]:
        parts = [self.tensors[column.name] for column in self.columns]
        parts += [] if self.paired_NP is None else [self.paired_NP]
        raw = [part[rows_B].reshape(len(rows_B), -1).view(torch.uint8) for part in parts]
        return torch.cat(raw, dim=1).numpy()


SourceRows = ImageRows | ColumnRows


class Labels(NamedTuple):
    """Labels of rows, their names (None numbers them) and, without single classes, the targets."""

    labels_N: Tensor
    names: tuple[str, ...] | None
    targets: TargetValues | None = None


def impute(values_ND: Tensor) -> tuple[Tensor, str]:
    """Replace missing numbers by their column's mean, in place, and append a flag for each column.

    Without missing numbers there are no flags; else N x 2D values and a note.
    """
    missing_ND = values_ND.isnan()
    num_missing_D = missing_ND.sum(dim=0)
    incomplete = num_missing_D.nonzero().flatten().tolist()
    for place in incomplete:
        known = values_ND[~missing_ND[:, place], place].to(torch.float64)
        mean = known.numpy().mean() if len(known) else 0.0
        values_ND[missing_ND[:, place], place] = mean
    if not incomplete:
        return values_ND, ""
    return torch.cat([values_ND, missing_ND.to(values_ND.dtype)], dim=1), (
        f"{int(num_missing_D.sum())} missing numbers in {len(incomplete)} columns are flagged and "
        "replaced by their column's mean"
    )


def labels_of_targets(targets: TargetValues, source: str, *, several: bool = False) -> Labels:
    """The targets, or one class each where every example has exactly one of its labels.

    `several` keeps labels of which an example may have several.
    """
    values = targets.values
    labels = isinstance(targets.target, MultiLabel) and values.shape[1] > 1
    if several or not labels or not bool((values.sum(dim=1) == 1).all()):
        return Labels(targets.strata_N, None, targets)
    logger.warning(
        "%s: every row has exactly one of %d labels, taken for its class. For several labels give "
        '(X, y) and target="multi-label"',
        *(source, values.shape[1]),
    )
    return Labels(values.int().argmax(dim=1), targets.names)


def require_no_probabilities(values_NT: Tensor, source: str) -> None:
    """Refuse soft labels, which would be numbers to predict."""
    values_NT = values_NT.double()
    sums_N = values_NT.sum(dim=1)
    shares = bool((values_NT >= 0).all() & ((sums_N - 1).abs() < _ROUNDED).all())
    if shares and values_NT.shape[1] > 1:
        raise DataError(
            f"{source}: its targets are probabilities of {values_NT.shape[1]} classes. Give each "
            'row\'s class, y.argmax(1); for numbers to predict give (X, y) and target="number".'
        )


def is_texts(names: object) -> TypeGuard[list[str]]:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def numbered_classes(labels_N: Tensor, source: str) -> tuple[str, ...]:
    largest = int(labels_N.max())
    if largest >= _MAX_CLASSES:
        raise DataError(
            f"{source}: row {int(labels_N.argmax())} has the label {largest}, which would make "
            f"{largest + 1} classes. Labels must be class numbers counted from 0."
        )
    return tuple(str(number) for number in range(largest + 1))


def labels_of_names(
    labels: Sequence[str], names: tuple[str, ...] | None, source: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Label numbers, int64, and class names, by default the sorted labels."""
    names = tuple(sorted(set(labels))) if names is None else names
    numbers = {name: number for number, name in enumerate(names)}
    try:
        label_numbers = [numbers[label] for label in labels]
    except KeyError as error:
        (unknown,) = error.args
        raise DataError(
            f"{source}: row {labels.index(unknown)} has the label {unknown!r:.80}, which is none "
            f"of its {len(names)} classes. Correct the row, or name all classes."
        ) from error
    return torch.tensor(label_numbers, dtype=torch.int64), names


def require_labels(labels_N: Tensor, num_classes: int, source: str, min_classes: int = 2) -> None:
    """Require class numbers as labels, and as a rule at least two classes."""
    outside_N = (labels_N < 0) | (labels_N >= num_classes)
    if bool(outside_N.any()):
        row = int(outside_N.to(torch.uint8).argmax())
        raise DataError(
            f"{source}: row {row} has the label {int(labels_N[row])}, which is not the number of "
            f"a class: its {num_classes} classes are numbered from 0. Number all from 0, or "
            "correct the row."
        )
    if num_classes < min_classes:
        raise DataError(
            f"{source} holds {num_classes} class; a classifier needs at least 2. "
            "Open the directory or file that holds all classes."
        )
