"""Map-style data sets of users: rows, class names, transforms, (X, y), and whether rows repeat.

A data set needs `len()` and `data[row]`, a pair of example and label. What a row returns decides:
`targets` beside the rows are only compared with it. torch's `Subset` and `ConcatDataset` have the
class names of the data sets that they read.

Random rows are found by repeated reads: 256 in all, of up to 64 rows. A transform that changes an
image in a tenth of all reads is then missed with a probability of 2e-12, one in a twentieth with
2e-6. Constant and symmetric images hide mirroring and count as unread.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from lipt.common.errors import ConfigError, DataError
from lipt.common.text import listed
from lipt.data.inputs.standardization import stored
from lipt.data.sources.rows import sampled_rows

logger = logging.getLogger(__name__)

_EXAMPLE_TRANSFORMS = ("transform", "transforms")
_MIN_READS, _NUM_READS = 4, 256
# Smaller arrays of floats are numbers rather than an image.
_LEAST_FLOAT_SIDE = 8
# Classes whose first rows are compared.
_MOST_CLASSES = 200
_HOW = "Give (X, y), or a data set with len() and data[row] -> (example, label)."


def length_of(source: str, data: Any) -> int:
    what = type(data).__name__
    if isinstance(data, Mapping):
        names = ", ".join(map(repr, list(data)[:8])) or "nothing"
        raise ConfigError(
            f"{source} is a {what} of {names}. Give one of its values, such as "
            f"data[{next(iter(data), 'train')!r}], or two as (X, y)."
        )
    if hasattr(data, "__getitem__") and not isinstance(data, type | str | bytes):
        try:
            return len(data)
        except (TypeError, NotImplementedError):
            pass
        except Exception as error:
            raise DataError(
                f"{source}: len() of a {what} failed with {type(error).__name__}: {error}. {_HOW}"
            ) from error
    if hasattr(data, "dataset") and hasattr(data, "batch_size"):
        raise ConfigError(f"{source} is a {what} of batches. Give its data set: loader.dataset.")
    if hasattr(data, "collect"):
        raise ConfigError(f"a {what} is not in memory. Give what its collect() returns.")
    if hasattr(data, "__iter__") and not isinstance(data, type | str | bytes):
        raise ConfigError(
            f"{source} is a {what}, which can only be iterated over. Materialize it: list(data) "
            "of (example, label) pairs, or a data set that is not streamed."
        )
    raise ConfigError(f"{source} is a {what}, which is no map-style data set. {_HOW}")


def is_image(example: object) -> bool:
    """Whether it is a Pillow image, or H x W or with 1 or 3 channels at either end: uint8 or 0..1.

    Floats of H x W are an image only if they are square; others may be a sequence of vectors.
    """
    if isinstance(example, Image.Image):
        return True
    if not isinstance(example, Tensor | np.ndarray):
        return False
    shape, kind = tuple(example.shape), str(example.dtype).removeprefix("torch.")
    channels = len(shape) == 3 and bool({shape[0], shape[2]} & {1, 3})
    if kind == "uint8":
        return len(shape) == 2 or channels
    square = len(shape) == 2 and shape[0] == shape[1]
    large = len(shape) > 1 and sorted(shape)[-2] >= _LEAST_FLOAT_SIDE
    return kind.startswith("float") and (channels or square) and large and is_unit(example)


def is_unit(values: Any) -> bool:
    return bool((values >= 0).all() and (values <= 1).all())


def read_row(source: str, data: Any, row: int) -> tuple[Any, Any]:
    """A row's example and label; a dictionary's example is all but "label", or its single image."""
    try:
        item = data[row]
    except Exception as error:
        raise DataError(
            f"{source}: reading row {row} failed with {type(error).__name__}: {error}. "
            "Every row must be readable."
        ) from error
    what = type(item).__name__
    if isinstance(item, Mapping):
        key = next((name for name in ("label", "labels") if name in item), None)
        rest = {str(name): value for name, value in item.items() if name != key}
        if key is not None and rest:
            only = next(iter(rest.values()))
            return (only if len(rest) == 1 and is_image(only) else rest), item[key]
        what = f"dictionary of {', '.join(map(str, item)) or 'nothing'}"
    elif isinstance(item, tuple | list) and len(item) >= 2:
        return item[0], item[1]
    if isinstance(item, np.ndarray | Tensor):
        raise DataError(
            f"{source}: row {row} is a {what} without a label. Return (image, label), or give "
            "(X, y); without labels any y of two classes serves with "
            'labels="none", strategy="facility_location".'
        )
    raise DataError(
        f"{source}: row {row} is a {what}. Return (image, label), (tensor, label), or a dictionary "
        'of tensors with a "label"; give arrays as (X, y).'
    )


class Description(NamedTuple):
    """Attributes of a data set; `relabels` if a transform may change the labels of its rows."""

    targets: Any
    classes: tuple[str, ...] | None
    relabels: bool


def describe(data: Any) -> Description:
    reads = getattr(type(data), "__getitem__", None)
    if isinstance(data, Subset) and reads is Subset.__getitem__:
        targets, classes, relabels = describe(data.dataset)
        taken = None
        if targets is not None:
            with suppress(Exception):
                taken = [targets[row] for row in data.indices]
        return Description(taken, classes, relabels)
    if isinstance(data, ConcatDataset) and reads is ConcatDataset.__getitem__:
        parts = [describe(part) for part in data.datasets]
        named = {part.classes for part in parts}
        if len(named - {None}) > 1:
            first, second, *_ = (", ".join(names) for names in named if names)
            raise ConfigError(
                f"the parts of a ConcatDataset have the classes {first:.60} and {second:.60}. Give "
                "all parts the same classes in the same order."
            )
        classes = named.pop() if len(named) == 1 else None
        return Description(None, classes, any(part.relabels for part in parts))
    names: Any = getattr(data, "classes", None)
    named_classes = isinstance(names, Sequence) and not isinstance(names, str)
    joint = getattr(data, "transforms", None)
    of_labels = getattr(data, "target_transform", None), getattr(joint, "target_transform", joint)
    relabels = of_labels != (None, None) or isinstance(data, _Relabelled)
    targets = getattr(data, "targets", None)
    return Description(
        targets.detach().cpu().numpy() if isinstance(targets, Tensor) else targets,
        tuple(map(str, names)) if named_classes else None,
        relabels,
    )


def class_names_of(source: str, data: Any, labels: Sequence[Any]) -> tuple[str, ...] | None:
    """The class names for the labels that all rows have returned; None numbers the classes.

    Warns where `targets` differ from these labels. Names then stay, unless a transform of labels
    can have changed their meaning.
    """
    targets, classes, relabels = describe(data)
    if targets is None:
        return None if relabels else classes
    beside = list(targets) if isinstance(targets, Iterable) else []
    if len(beside) == len(labels):
        with suppress(ValueError, TypeError, RuntimeError):
            if np.array_equal(np.asarray(beside), np.asarray(labels)):
                return classes
    differing = [
        row
        for row, (target, label) in enumerate(zip(beside, labels, strict=False))
        if not is_same(target, label)
    ]
    if not differing and len(beside) == len(labels):
        return classes
    problem = f"has {len(beside)} `targets` for {len(labels)} rows"
    if differing:
        problem = f"returns other labels than its `targets` in rows {listed(differing, 5)}"
    logger.warning(
        "%s: the data set %s; the labels that its rows return are taken", source, problem
    )
    return None if relabels else classes


def is_same(first: Any, second: Any) -> bool:
    """Whether two reads of a label are equal, whatever holds them."""
    try:
        values, again = as_array(first), as_array(second)
        return bool(np.array_equal(values, again, equal_nan=values.dtype.kind == "f"))
    except (TypeError, ValueError, RuntimeError):
        return bool(type(first) is type(second) and first == second)


def as_array(target: Any) -> np.ndarray:
    if isinstance(target, Tensor):
        detached = target.detach().cpu()
        # NumPy has no bfloat16.
        return (detached.float() if detached.is_floating_point() else detached).numpy()
    return np.asarray(target)


def require_repeatable(
    source: str, num_rows: int, read: Callable[[int], tuple[bytes, Any]]
) -> None:
    """Read rows, as bytes and a label, several times each; DataError where they differ."""
    rows = sampled_rows(num_rows)
    for row in rows:
        content, label = read(row)
        for _ in range(1, max(_MIN_READS, -(-_NUM_READS // len(rows)))):
            again, label_again = read(row)
            if again == content and is_same(label, label_again):
                continue
            raise DataError(
                f"{source}: row {row} differs between two reads. Leave out random transforms: the "
                "workers augment."
            )


class _Relabelled:
    """The examples of a data set without its transforms, with the labels that it returns."""

    def __init__(self, plain: Any, data: Any) -> None:
        self._plain, self._data = plain, data
        self.targets, self.classes, _ = describe(data)
        for name in ("standardize", "num_values", "target"):
            if hasattr(data, name):
                setattr(self, name, getattr(data, name))

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        example, _ = read_row("data", self._plain, row)
        return example, read_row("data", self._data, row)[1]


def without_transforms(data: Any) -> Any:
    """The data set without torchvision's transforms of examples, as a shallow copy if it has any.

    Labels stay those that the data set returns. A data set that needs its transforms keeps them.
    """
    given = [name for name in _EXAMPLE_TRANSFORMS if getattr(data, name, None) is not None]
    if not given:
        return data
    plain = copy.copy(data)
    try:
        for name in given:
            # Of torchvision's two, the one of labels stays.
            kept = getattr(getattr(data, name), "target_transform", None)
            joint = copy.copy(getattr(data, name)) if kept is not None else None
            if joint is not None:
                joint.transform = None
            setattr(plain, name, joint)
        same = all(
            is_same(*(read_row("data", rows, row)[1] for rows in (plain, data)))
            for row in _rows_to_compare(data)
        )
    except Exception:  # noqa: BLE001 - of a user's function, reported by its reader
        return data
    return plain if same else _Relabelled(plain, data)


def _rows_to_compare(data: Any) -> list[int]:
    """Rows spread over the data, and the first one of each class."""
    targets, firsts = describe(data).targets, list[int]()
    with suppress(Exception):
        firsts = np.unique(np.asarray(targets), return_index=True)[1].tolist()
    inside = [row for row in firsts[:_MOST_CLASSES] if row < len(data)]
    return sorted({*sampled_rows(len(data)), *inside})


class Pairs:
    """Rows of (example, label) from two columns; text labels are numbered alphabetically."""

    def __init__(self, examples: Any, labels: Any, classes: tuple[str, ...] | None = None) -> None:
        columns = examples if isinstance(examples, Mapping) else {"": examples}
        self._examples = {name: _array(values) for name, values in columns.items()}
        self._named = isinstance(examples, Mapping)
        values = _array(labels)
        if not all(map(has_rows, self._examples.values())):
            raise DataError("X has no rows. Give an array, a list or a tensor with one per label.")
        num_examples, num_labels = len(next(iter(self._examples.values()))), len(values)
        if num_examples != num_labels:
            raise DataError(
                f"there are {num_examples} examples and {num_labels} labels. Give one label for "
                "each example: (X, y) of one length."
            )
        # Whole numbers of an array are measurements, those of a tensor or list may be tokens.
        plain: Any = self._examples.get("") if not self._named else None
        # Row 0 decides, as everywhere.
        has_first = bool(num_labels) and hasattr(plain, "__getitem__")
        self._are_images = has_first and is_image(plain[0])
        rows = plain if isinstance(plain, np.ndarray) and not self._are_images else np.empty(0)
        # Grids of bytes and flags are numbers already, in the least memory.
        if rows.dtype.kind in "biu" and (rows.ndim == 2 or (rows.ndim > 2 and rows.itemsize > 1)):
            self._examples[""] = stored(torch.from_numpy(rows.astype(np.float64))).numpy()
        if isinstance(next(iter(values), None), str):
            _require_names(values)
            names, numbers = np.unique(np.asarray(values).astype(str), return_inverse=True)
            classes, values = tuple(names.tolist()), numbers.reshape(-1)
        if getattr(values, "ndim", 1) == 2 and hasattr(labels, "columns") and values.shape[1] > 1:
            classes = tuple(map(str, labels.columns))
        self.targets, self.classes = values, classes

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        label = self.targets[row]
        if self._named:
            return {name: column[row] for name, column in self._examples.items()}, label
        example = self._examples[""][row]
        # Readers take an image array's last dimension for the channels.
        if self._are_images and isinstance(example, np.ndarray) and example.ndim == 3:
            first, last = example.shape[0] in (1, 3), example.shape[-1] in (1, 3)
            example = example.transpose(1, 2, 0) if first and not last else example
        return example, label


def _require_names(labels: Iterable[Any]) -> None:
    for row, label in enumerate(labels):
        if not isinstance(label, str):
            raise DataError(
                f"row {row} has the label {label!r:.60}, and row 0 a name. Give a text for every "
                "row, and leave out rows without a label."
            )


def has_rows(data: Any) -> bool:
    """Whether data has a length: classes and arrays without dimensions have the method alone."""
    try:
        return len(data) >= 0
    except TypeError:
        return False


def _array(values: Any) -> Any:
    """A column as it is, or as NumPy's array; masked values are missing ones."""
    if isinstance(values, np.ma.MaskedArray):
        masked, is_number = np.ma.getmaskarray(values), values.dtype.kind in "biuf"
        if not masked.any():
            return values.data
        cells = values.data.astype(np.float64 if is_number else object)
        cells[masked] = np.nan if is_number else None
        return cells
    if not hasattr(values, "to_numpy"):
        return values
    array = values.to_numpy()
    # Tables give read-only views, and torch warns about them.
    return array if array.flags.writeable else array.copy()
