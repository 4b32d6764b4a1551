"""Users' own data: a map-style data set, such as a list or one of torchvision's, or its factory.

It needs `len()` and `data[row]`, a pair of example and label. Row 0 decides whether examples are
images or other tensors. Vectors of floats are standardized, and their missing numbers replaced.
Optional attributes: `classes`, the classes' names; `standardize`, a flag or columns' names;
`num_values` of whole numbers, by column or for all; `target`, the kind of the targets, "number" or
"multi-label", where they could be classes. The type of a target decides its kind:

    an int                                one class                   single-label
    a float, of few whole ones in all     one class                   single-label
    a vector of 0 with one 1, in all      the position of the 1       single-label
    a vector of 0 and 1                   a position for each label   multi-label
    a list of names                       the example's labels        multi-label
    a float, or a vector of floats        numbers to predict          regression
"""

from __future__ import annotations

import logging
import numbers
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lipt.common.errors import DataError
from lipt.data.images.formats import fit_image, is_grayscale, oriented
from lipt.data.inputs.specs import MAX_COLUMNS, MAX_DIMENSIONS, Column, ColumnsSpec, ColumnType
from lipt.data.inputs.standardization import ROWS_AT_ONCE
from lipt.data.parallel import Progress, map_rows
from lipt.data.sources.map_style import (
    as_array,
    class_names_of,
    describe,
    is_image,
    is_same,
    is_unit,
    length_of,
    read_row,
    require_repeatable,
)
from lipt.data.sources.rows import (
    ColumnRows,
    Labels,
    PixelRows,
    impute,
    labels_of_names,
    labels_of_targets,
    require_no_probabilities,
    sampled_rows,
)
from lipt.data.targets.kinds import ALL_KINDS, are_too_many, kinds_in_words
from lipt.data.targets.values import TargetValues, label_values, number_values

logger = logging.getLogger(__name__)

# Floats are classes if they have at most so many values, all whole, each so often on average.
_MOST_FLOAT_CLASSES, _MIN_FLOATS_PER_CLASS = 20, 10
_FEW_CLASSES = 100
_LARGEST_EXACT = 2.0**53
# Root of the mean square above which a network on numbers as they are hardly learns.
_LARGE = 10.0
# What a data set's `target` may be: its kind, where targets could be classes.
KINDS = NUMBER, MULTI_LABEL = "number", "multi-label"
_TYPES = frozenset(kind.dtype for kind in ColumnType)
_KINDS = (
    f"Targets are {kinds_in_words(ALL_KINDS)}: a class number, labels, or numbers. Of other data "
    "choose by features, one vector for each example."
)


def kind_of(data: Any) -> str | None:
    """The kind of targets that a data set sets; its own attribute of that name may be anything."""
    kind = getattr(data, "target", None)
    return kind if isinstance(kind, str) and kind in KINDS else None


def rows_of_data(
    source: str, data: Any, progress: Progress | None = None
) -> FactoryRows | ColumnRows:
    if length_of(source, data) == 0:
        raise DataError(f"{source} is empty. Give at least one example of each class.")
    if is_image(read_row(source, data, 0)[0]):
        return FactoryRows(source, data)
    return column_rows(source, data, progress)


def labels_of_rows(labels: Sequence[Any], data: Any, source: str) -> Labels:
    """The targets that all rows return; `data` may name the classes or set the kind of targets."""
    kind = kind_of(data)
    labels = [as_array(label) if isinstance(label, Tensor) else label for label in labels]
    names = class_names_of(source, data, labels)
    with suppress(TypeError, ValueError, RuntimeError):
        numbers_N = np.asarray(labels)
        column = numbers_N.ndim == 2 and numbers_N.shape[1] == 1
        if column and numbers_N.dtype.kind in "biuf":
            numbers_N = numbers_N[:, 0]
            labels = list(numbers_N)
        if numbers_N.ndim == 1 and numbers_N.dtype.kind in "biuf":
            if kind == NUMBER:
                column_N1 = torch.from_numpy(numbers_N.astype(np.float64)[:, None])
                targets = number_values(column_N1, names, source)
                return Labels(targets.strata_N, None, targets)
            if numbers_N.dtype.kind != "f" or _are_classes(numbers_N, source):
                if column:
                    logger.warning("%s: its targets are a column, taken for one class each", source)
                return _numbered(numbers_N.astype(np.int64), names, source)
    if labels and all(isinstance(label, str) for label in labels):
        return Labels(*labels_of_names(list(map(str, labels)), names, source))
    if all(map(is_class, labels)):
        for row, label in enumerate(labels):  # one is no int64
            _class_number(label, source, row)
    targets = read_targets(labels, names, source, kind)
    return labels_of_targets(targets, source, several=kind == MULTI_LABEL)


def _are_classes(numbers_N: NDArray[Any], source: str) -> bool:
    """Whether floats are few whole numbers, each many times: classes that were read as floats."""
    values = np.unique(numbers_N.astype(np.float64))
    most = min(_MOST_FLOAT_CLASSES, len(numbers_N) // _MIN_FLOATS_PER_CLASS)
    whole_V = (values % 1 == 0) & (np.abs(values) < _LARGEST_EXACT)
    if len(values) > most or not whole_V.all():
        return False
    logger.warning(
        "%s: its targets are floats of %d whole values, taken for classes. For regression, set "
        'target="number"',
        *(source, len(values)),
    )
    return True


def _numbered(values_N: NDArray[np.int64], names: tuple[str, ...] | None, source: str) -> Labels:
    """Labels as they are if they are about 0 to C - 1, or else numbered and named by value."""
    values = np.unique(values_N)
    if names is None and are_too_many(len(values), len(values_N)):
        logger.warning(
            "%s: its targets are %d whole values in %d rows, taken for classes. For regression, "
            'set target="number"',
            *(source, len(values), len(values_N)),
        )
    # A small test set may lack most of the classes.
    most = max(_FEW_CLASSES, 2 * len(values))
    if names is not None or not len(values) or (values[0] >= 0 and values[-1] < most):
        return Labels(torch.from_numpy(values_N), names)
    logger.warning(
        "%s: its labels are %d values from %d to %d, numbered by value and named by it",
        *(source, len(values), values[0], values[-1]),
    )
    labels_N = torch.from_numpy(np.searchsorted(values, values_N))
    return Labels(labels_N, tuple(map(str, values.tolist())))


def _class_number(label: Any, source: str, row: int) -> int:
    if not is_class(label) or abs(int(label)) >= 2**63:
        raise DataError(
            f"{source}: row {row} has the label {label!r:.80}, a {type(label).__name__}. Return "
            "the number of its class, an int from 0."
        )
    return int(label)


def is_class(target: Any) -> bool:
    """Whether a row's target is a whole number, that is, a class."""
    if isinstance(target, Tensor | np.ndarray):
        array = as_array(target)
        return array.size == 1 and array.ndim <= 1 and array.dtype.kind in "biu"
    return isinstance(target, numbers.Integral | np.bool_)


def read_targets(
    targets: Sequence[Any], names: Sequence[str] | None, source: str, kind: object = None
) -> TargetValues:
    """The targets of all rows, where not all are classes; `names` of labels or numbers."""
    if any(_is_names(target) for target in targets):
        return _named_labels(targets, names, source)
    vectors = [_vector(target, source, row) for row, target in enumerate(targets)]
    widths = sorted({vector.size for vector in vectors})
    if len(widths) > 1:
        raise DataError(
            f"{source}: the targets of its rows have {widths[0]} to {widths[-1]} numbers. Give as "
            "many for every row."
        )
    stacked = torch.from_numpy(np.stack(vectors).astype(np.float64))
    single = all(isinstance(t, numbers.Real) or as_array(t).ndim == 0 for t in targets)
    whole = all(vector.dtype.kind in "biu" for vector in vectors)
    binary = bool(((stacked == 0) | (stacked == 1)).all())
    if not single and kind != NUMBER:
        if whole or binary:
            return label_values(stacked, names, source)
        require_no_probabilities(stacked, source)
    return number_values(stacked, names, source)


def _is_names(target: Any) -> bool:
    listed = isinstance(target, list | tuple | set | frozenset)
    return listed and len(target) > 0 and all(isinstance(name, str) for name in target)


def _named_labels(targets: Sequence[Any], names: Sequence[str] | None, source: str) -> TargetValues:
    for row, target in enumerate(targets):
        if not _is_names(target) and not (hasattr(target, "__len__") and not len(target)):
            raise DataError(
                f"{source}: row {row} has the target {target!r:.80}, and others have lists of "
                "names. Give the list of an example's labels for every row, [] for none."
            )
    used_names = sorted({name for target in targets for name in target})
    labels = used_names if names is None else list(names)
    if unknown := sorted(set(used_names) - set(labels)):
        raise DataError(
            f"{source}: its rows have the label {unknown[0]!r}, which is none of its "
            f"{len(labels)} `classes`. Name it there, or leave `classes` out."
        )
    places = {name: place for place, name in enumerate(labels)}
    values_NC = torch.zeros(len(targets), len(labels), dtype=torch.uint8)
    for row, target in enumerate(targets):
        values_NC[row, [places[name] for name in target]] = 1
    return label_values(values_NC, labels, source)


def _vector(target: Any, source: str, row: int) -> np.ndarray:
    try:
        array = as_array(target)
    except (TypeError, ValueError, RuntimeError):
        array = np.empty((0, 0, 0))
    if array.ndim > 1 or not array.size or array.dtype.kind not in "biuf":
        kind = type(target).__name__
        raise DataError(f"{source}: the target of row {row} is a {kind}. {_KINDS}")
    return array.reshape(-1)


class FactoryRows(PixelRows):
    """The images of a user's data set; their labels are noted as rows are read."""

    concurrent = False

    def __init__(self, source: str, data: Any) -> None:
        # -1: not known yet.
        labels_N = torch.full((length_of(source, data),), -1, dtype=torch.int64)
        super().__init__(source, None, labels_N)
        self._data = data
        self._noted: dict[int, Any] = {}

    def pixels(self, row: int) -> NDArray[np.uint8]:
        """The image; notes its label."""
        image, label = read_row(self.source, self._data, row)
        self._noted[row] = label
        return _pixels_of(image, self.source, row)

    def complete(self) -> None:
        def read(row: int) -> tuple[bytes, Any]:
            return self.raw(row), self._noted[row]

        for row in range(len(self)):
            if row not in self._noted:
                read(row)
        # A list returns what it holds.
        if not isinstance(self._data, list | tuple):
            require_repeatable(self.source, len(self), read)
        self._label([self._noted[row] for row in range(len(self))])

    def take_targets(self) -> bool:
        """Take `targets` for the labels, which saves reading all rows; False where they differ."""
        targets, _, relabels = describe(self._data)
        if targets is None or relabels or len(targets) != len(self):
            return False
        for row in sampled_rows(len(self)):
            self.raw(row)
            if not is_same(targets[row], self._noted[row]):
                return False
        self._label(list(targets))
        return True

    def _label(self, labels: Sequence[Any]) -> None:
        own_labels = labels_of_rows(labels, self._data, self.source)
        for name, value in own_labels._asdict().items():
            # The rows are frozen for all others.
            object.__setattr__(self, name, value)


def _pixels_of(image: Any, source: str, row: int) -> NDArray[np.uint8]:
    """C x H x W, of 1 or 3 channels."""
    if isinstance(image, Image.Image):
        try:
            image = oriented(image)
            return fit_image(image, 1 if is_grayscale(image) else 3, (image.height, image.width))
        except (DataError, OSError, ValueError) as error:
            raise DataError(f"{source}: the image of row {row} cannot be used: {error}.") from error
    pixels = image.detach().cpu().numpy() if isinstance(image, Tensor) else image
    if isinstance(image, np.ndarray) and image.ndim == 3:
        pixels = image.transpose(2, 0, 1)
    if isinstance(pixels, np.ndarray) and pixels.ndim == 2:
        pixels = pixels[None]
    if isinstance(pixels, np.ndarray) and pixels.dtype.kind == "f" and is_unit(pixels):
        pixels = np.rint(pixels.astype(np.float64) * 255).astype(np.uint8)
    if not is_image(pixels) or pixels.ndim != 3 or len(pixels) not in {1, 3} or not pixels.size:
        kind = f"a {type(image).__name__}"
        if isinstance(image, Tensor | np.ndarray):
            kind = f"{image.dtype} of shape {tuple(image.shape)}"
        raise DataError(
            f"{source}: the image of row {row} is {kind}. Return a PIL image, or uint8 or floats "
            "in 0..1: C x H x W of a tensor, H x W x C of an array, without Normalize."
        )
    pixel_array: NDArray[np.uint8] = pixels
    return pixel_array


def column_rows(source: str, data: Any, progress: Progress | None = None) -> ColumnRows:
    """All rows of a user's data set, stacked by column, in memory.

    Shorter tensors are zero-padded at the end of their first dimension.
    """
    num_rows = length_of(source, data)
    parts: dict[str, list[Tensor]] = {}
    labels: list[Any] = []

    def read(row: int) -> tuple[dict[str, Tensor], Any]:
        example, label = read_row(source, data, row)
        return _tensors_of(example, source, row), label

    def read_bytes(row: int) -> tuple[bytes, Any]:
        tensors, label = read(row)
        flat = (part.flatten().repeat(1) for part in tensors.values())
        return b"".join(part.view(torch.uint8).numpy().tobytes() for part in flat), label

    for row, (tensors, label) in enumerate(
        map_rows(read, range(num_rows), num_threads=1, progress=progress)
    ):
        if row == 0:
            parts = {name: [] for name in tensors}
        if tensors.keys() != parts.keys():
            raise DataError(
                f"{source}: row {row} has the tensors {_named(tensors)}, row 0 {_named(parts)}. "
                "Give every row the same ones."
            )
        for name, tensor in tensors.items():
            parts[name].append(tensor)
        labels.append(label)
    stacked = {name: _stacked(name, tensors, source) for name, tensors in parts.items()}
    # A list returns what it holds.
    if not isinstance(data, list | tuple):
        require_repeatable(source, num_rows, read_bytes)
    given = labels_of_rows(labels, data, source)
    columns, note = _columns_of(stacked, data, source), ""
    if columns[0].standardized and _is_vector(columns[0]):
        values_ND, note = impute(stacked[""].view(num_rows, -1))
        if note:
            stacked[""] = values_ND
            columns = _columns_of(stacked, data, source)
    _warn_of_large_numbers(columns[0], stacked, source)
    more: dict[str, Any] = {"targets": given.targets, "note": note, "flagged": bool(note)}
    return ColumnRows(source, given.names, given.labels_N, columns, stacked, **more)


def _warn_of_large_numbers(column: Column, stacked: Mapping[str, Tensor], source: str) -> None:
    """Log that floats without a name are used as they are, where networks hardly learn so."""
    values_N = stacked[column.name]
    if column.name or column.standardized or not values_N.is_floating_point():
        return
    squares = (block.double().square().mean() for block in torch.split(values_N, ROWS_AT_ONCE))
    size = max(map(float, squares)) ** 0.5
    if size > _LARGE:
        logger.warning(
            "%s: its examples are %s of a size of about %.3g, used as they are. Scale them to "
            "about 1, and images to 0..1",
            *(source, column, size),
        )


def bytes_of_first(source: str, data: Any) -> int:
    """The bytes of row 0 as columns; 0 for an image or an empty data set."""
    if length_of(source, data) == 0:
        return 0
    example, _ = read_row(source, data, 0)
    if is_image(example):
        return 0
    return sum(tensor.nbytes for tensor in _tensors_of(example, source, 0).values())


def _tensors_of(example: Any, source: str, row: int) -> dict[str, Tensor]:
    named: Mapping[str, Any] = example if isinstance(example, Mapping) else {"": example}
    return {
        str(name): _tensor_of(value, f"{source}: {_what(str(name))} of row {row}")
        for name, value in named.items()
    }


def _tensor_of(value: Any, what: str) -> Tensor:
    if isinstance(value, str | bytes):
        raise DataError(
            f"{what} is text, {value!r:.60}. Return the numbers of its tokens, or the opened image "
            "of an image file."
        )
    if isinstance(value, np.ndarray):
        # torch takes no other byte order, no reversed view, and warns of a read-only one.
        own = value.dtype.isnative and value.flags.writeable and min(value.strides, default=0) >= 0
        value = value if own else np.array(value, value.dtype.newbyteorder("="), order="C")
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{what} is a {type(value).__name__}, and no tensor ({error}). Return a tensor, an "
            "array or a list of numbers."
        ) from error
    if tensor.dtype not in _TYPES or tensor.is_sparse or tensor.ndim > MAX_DIMENSIONS:
        raise DataError(
            f"{what} is {tensor.dtype} of {tensor.ndim} dimensions. Return one of "
            f"{', '.join(ColumnType)}, dense, of at most {MAX_DIMENSIONS}."
        )
    return tensor


def _stacked(name: str, tensors: list[Tensor], source: str) -> Tensor:
    """All rows' tensors of a column, N x shape, padded at their ends."""
    first, what = tensors[0], f"{source}: {_what(name)}"
    for row, tensor in enumerate(tensors):
        same = tensor.dtype == first.dtype and tensor.ndim == first.ndim
        if not same or tensor.shape[1:] != first.shape[1:]:
            raise DataError(
                f"{what} of row {row} is {tensor.dtype} of shape {tuple(tensor.shape)}, and "
                f"{first.dtype} of shape {tuple(first.shape)} in row 0. Only lengths along the "
                "first dimension may differ."
            )
    if first.ndim == 0:
        return torch.stack(tensors)
    stacked = pad_sequence(tensors, batch_first=True)
    if stacked[0].numel() == 0:
        raise DataError(f"{what} is empty in all rows. Leave it out.")
    shortest, longest = min(map(len, tensors)), stacked.shape[1]
    if shortest < longest:
        logger.info(
            "%s is %d to %d long; shorter ones are padded with zeros", what, shortest, longest
        )
    return stacked


def _columns_of(stacked: Mapping[str, Tensor], data: Any, source: str) -> tuple[Column, ...]:
    if len(stacked) > MAX_COLUMNS:
        raise DataError(
            f"{source}: an example has {len(stacked)} tensors, at most {MAX_COLUMNS} are taken. "
            "Put them together."
        )
    standardize: Any = getattr(data, "standardize", None)
    num_values: Any = getattr(data, "num_values", 0)
    named = set(standardize) if isinstance(standardize, list | tuple | set) else set()
    numbered = set(num_values) if isinstance(num_values, Mapping) else set()
    if unknown := sorted((named | numbered) - set(stacked)):
        raise DataError(
            f"{source}: there is no column {unknown[0]!r} to standardize or to number. Name one of "
            f"{_named(stacked)}."
        )
    columns = []
    for name, tensor in stacked.items():
        floating = tensor.is_floating_point()
        by_name = num_values.get(name, 0) if isinstance(num_values, Mapping) else num_values
        values = 0 if floating else int(by_name)
        kind, shape = ColumnType.of(tensor.dtype), tuple(tensor.shape[1:])
        column = Column(name, kind, shape, num_values=values)
        usual = _is_vector(column) if standardize is None else standardize is True
        columns.append(replace(column, standardized=(usual and floating) or name in named))
    return ColumnsSpec(tuple(columns)).columns


def _is_vector(column: Column) -> bool:
    """Whether it is a vector without a name; named columns belong to a user's own model."""
    return not column.name and len(column.shape) <= 1


def _what(name: str) -> str:
    return f"the tensor {name!r}" if name else "the tensor"


def _named(tensors: Mapping[str, object]) -> str:
    return ", ".join(map(repr, tensors)) or "nothing"
