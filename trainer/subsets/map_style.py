"""Map style: the forms in which people have their data, as rows of (example, label).

    (X, y)                          arrays, tensors, lists, a pandas frame and series
    datasets.Dataset                Hugging Face's; its image, else what is not the label
    a map-style data set            as it is; torchvision's without its transforms

What an example may be is for the reader of the rows to judge, not decided here.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lipt.common.errors import DataError

_TRANSFORMS = ("transform", "target_transform", "transforms")
_LABELS = ("label", "labels", "fine_label", "target", "class")


class Pairs:
    """Rows of (example, label) of two columns.

    Attributes:
        targets: all labels; text is numbered in alphabetical order.
        classes: the names of such labels; not there where they are numbers.
    """

    def __init__(self, examples: Any, labels: Any) -> None:
        """Take columns of one length.

        Raises:
            DataError: they are not.
        """
        self._examples = _column(examples)
        values = _column(labels)
        num_examples, num_labels = _length(self._examples), len(values)
        if num_examples != num_labels:
            raise DataError(
                f"there are {num_examples} examples and {num_labels} labels. Give one label for "
                "each example: (X, y) of one length."
            )
        texts = np.asarray(values) if not hasattr(values, "dtype") else values
        if getattr(texts.dtype, "kind", "") in "UO":
            names, numbers = np.unique(np.asarray(texts).astype(str), return_inverse=True)
            self.classes = tuple(names.tolist())
            values = numbers.reshape(-1)
        self.targets = values

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        label = self.targets[row]
        if isinstance(self._examples, Mapping):
            return {name: column[row] for name, column in self._examples.items()}, label
        return _channels_first(self._examples[row]), label


class TablePairs:
    """Rows of (example, label) of a Hugging Face `datasets.Dataset`.

    Attributes:
        targets: all labels.
        classes: their names; not there where the table has none.
    """

    def __init__(self, table: Any) -> None:
        """Find the columns.

        Raises:
            DataError: none of them is a label.
        """
        features = table.features
        self._label = _label_column(features)
        images = [name for name in features if type(features[name]).__name__ == "Image"]
        self._columns = images[:1] or [name for name in features if name != self._label]
        self._table = table
        labels = table.select_columns([self._label]).with_format("arrow")[:][self._label]
        self.targets = _writable(labels.to_numpy())
        if names := getattr(features[self._label], "names", None):
            self.classes = tuple(names)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        example = self._table[row]
        values = {name: example[name] for name in self._columns}
        return next(iter(values.values())) if len(values) == 1 else values, self.targets[row]


def map_style(data: Any) -> Any:
    """Data as rows of (example, label), without random transforms.

    Raises:
        DataError: columns differ in length, or no column of a table is a label.
    """
    rows = rows_of(data)
    return TablePairs(rows) if is_table(rows) else without_transforms(rows)


def rows_of(data: Any) -> Any:
    """Data that has a row for each number: (X, y) as pairs, all else as it is.

    Raises:
        DataError: the columns differ in length.
    """
    return Pairs(*data) if _is_columns(data) else data


def is_table(data: Any) -> bool:
    """Whether data is a Hugging Face `datasets.Dataset`, which is asked of nobody to install."""
    return hasattr(data, "features") and hasattr(data, "with_format")


def without_transforms(dataset: Any) -> Any:
    """A shallow copy that gives its images as they are; the set itself where it has none."""
    given = [name for name in _TRANSFORMS if getattr(dataset, name, None) is not None]
    if not given:
        return dataset
    plain = copy.copy(dataset)
    for name in given:
        try:
            setattr(plain, name, None)
        except AttributeError:  # a property: not an attribute that torchvision would set
            return dataset
    return plain


def _is_columns(data: Any) -> bool:
    # A tuple of two (image, label) is a data set of two rows.
    return (
        isinstance(data, tuple)
        and len(data) == 2
        and not any(isinstance(column, tuple | str) for column in data)
        and (isinstance(data[0], Mapping) or hasattr(data[0], "__len__"))
        and hasattr(data[1], "__len__")
    )


def _column(values: Any) -> Any:
    return _writable(values.to_numpy()) if hasattr(values, "to_numpy") else values


def _writable(values: Any) -> Any:
    # Tables give views of what nobody may change, which torch warns of.
    return values if values.flags.writeable else values.copy()


def _length(examples: Any) -> int:
    return len(next(iter(examples.values()))) if isinstance(examples, Mapping) else len(examples)


def _channels_first(example: Any) -> Any:
    """An image as readers know it: of arrays the last dimension is the channels."""
    if isinstance(example, np.ndarray) and example.ndim == 3 and example.dtype == np.uint8:
        first, last = example.shape[0] in (1, 3), example.shape[-1] in (1, 3)
        return example.transpose(1, 2, 0) if first and not last else example
    return example


def _label_column(features: Mapping[str, Any]) -> str:
    classes = [name for name in features if type(features[name]).__name__ == "ClassLabel"]
    named: Sequence[str] = [name for name in _LABELS if name in features]
    found = [name for name in named if name in classes] or classes or named
    if not found:
        raise DataError(
            f"the table has the columns {', '.join(features)}, and none of them is called label or "
            "holds class labels. Rename the column with the labels to label."
        )
    return found[0]
