"""Labels of a user's data set: class numbers, or names, which are numbered in sorted order.

Shapes: N examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipt.common.errors import DataError

_ONE_CLASS = (
    "Data is single-label classification here: multi-label and regression are not taken yet. For "
    "detection and segmentation give features of a model of yours with the class of each example."
)


def class_names_of(data: Any) -> tuple[str, ...] | None:
    """The names that a data set's `classes` give its labels; None where it has none."""
    names: Any = getattr(data, "classes", None)
    named = isinstance(names, Sequence) and not isinstance(names, str)
    return tuple(map(str, names)) if named else None


def labels_of_targets(
    targets: Any, names: tuple[str, ...] | None, num_rows: int, source: str
) -> tuple[Tensor, tuple[str, ...] | None]:
    """The labels of all rows, int64, and the classes' names; from a data set's `targets`.

    Raises:
        DataError: they are not one class number, or class name, per row.
    """
    listed = targets.tolist() if isinstance(targets, np.ndarray | Tensor) else targets
    if isinstance(listed, Sequence) and len(listed) == num_rows and all(map(is_name, listed)):
        return labels_of_names([str(label) for label in listed], names, source)
    try:
        labels_N = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{source}: its targets are not a list of class numbers ({error}). Let `targets` be a "
            "list of one integer per row, or leave it out."
        ) from error
    if labels_N.shape != (num_rows,) or labels_N.is_floating_point() or labels_N.is_complex():
        raise DataError(
            f"{source}: its targets are {labels_N.dtype} of shape {tuple(labels_N.shape)} for "
            f"{num_rows} rows. Let `targets` be a list of one integer per row, or leave it out. "
            f"{_ONE_CLASS}"
        )
    return labels_N.to(device="cpu", dtype=torch.int64, copy=True), names


def is_name(label: object) -> bool:
    """Whether a label is a class's name rather than its number."""
    return isinstance(label, str)


def labels_of_names(
    labels: Sequence[str], names: tuple[str, ...] | None, source: str
) -> tuple[Tensor, tuple[str, ...]]:
    """The number of each label, int64, and what the numbers stand for.

    Args:
        labels: names, one per row.
        names: of the classes, in the order of their numbers; None takes all labels, sorted.
        source: for the message.

    Raises:
        DataError: a label is none of the names.
    """
    names = tuple(sorted(set(labels))) if names is None else names
    numbers = {name: number for number, name in enumerate(names)}
    for row, label in enumerate(labels):
        if label not in numbers:
            raise DataError(
                f"{source}: row {row} has the label {label!r:.80}, which is none of its classes "
                f"{', '.join(names[:10])}{', ...' if len(names) > 10 else ''}. Correct the row, or "
                "the data set's `classes`."
            )
    return torch.tensor([numbers[label] for label in labels], dtype=torch.int64), names


def label_of(label: Any, source: str, row: int) -> int:
    """The number of a row's class.

    Raises:
        DataError: it is not a whole number.
    """
    try:
        number = int(label)
        exact = number == label
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number, exact = 0, False
    if not exact or abs(number) >= 2**63:
        raise DataError(
            f"{source}: row {row} has the label {label!r:.80}, a {type(label).__name__}. Return "
            f"the number of its class, an int from 0. {_ONE_CLASS}"
        )
    return number
