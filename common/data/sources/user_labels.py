"""Labels of a user's data set: class numbers, or names, which are numbered in sorted order.

Or, as `lipt.common.targets.target` tells them apart, labels of which an example has several, or
numbers to be told.

Shapes: N examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.targets.reading import LEFT_OUT, read_targets
from lipt.common.targets.values import TargetValues


@dataclass(frozen=True)
class Given:
    """What the rows of a data set say of their targets.

    labels_N: int64; strata where there are targets.
    names: of the classes; None where they have none.
    targets: where examples have no single class.
    """

    labels_N: Tensor
    names: tuple[str, ...] | None
    targets: TargetValues | None = None


def class_names_of(data: Any) -> tuple[str, ...] | None:
    """The names that a data set's `classes` give its labels; None where it has none."""
    names: Any = getattr(data, "classes", None)
    named = isinstance(names, Sequence) and not isinstance(names, str)
    return tuple(map(str, names)) if named else None


def given_in_targets(
    targets: Any, names: tuple[str, ...] | None, num_rows: int, source: str
) -> Given:
    """What a data set's `targets` say of all rows.

    Raises:
        DataError: they are not one target of a known kind for each row.
    """
    if isinstance(targets, Tensor):
        targets = targets.detach().cpu().numpy()
    # As a row would have it: a number, or an array of its own.
    listed = list(targets) if isinstance(targets, Iterable) else None
    if listed is None or len(listed) != num_rows:
        found = "not a list" if listed is None else f"{len(listed)} for {num_rows} rows"
        raise DataError(
            f"{source}: its targets are {found}. Let `targets` be a list of one target per row, or "
            "leave it out."
        )
    return given_in_rows(listed, names, source)


def given_in_rows(labels: Sequence[Any], names: tuple[str, ...] | None, source: str) -> Given:
    """What the targets of all rows say: names or numbers of classes, or targets of other kinds.

    Raises:
        DataError: they are of no kind that can be used, or of different ones.
    """
    if (numbers_N := _class_numbers(labels)) is not None:
        return Given(numbers_N, names)
    if labels and all(map(is_name, labels)):
        return Given(*labels_of_names([str(label) for label in labels], names, source))
    targets = read_targets(labels, names, source)
    if targets is not None:
        return Given(targets.strata_N, None, targets)
    numbers = [label_of(label, source, row) for row, label in enumerate(labels)]
    return Given(torch.tensor(numbers, dtype=torch.int64), names)


def _class_numbers(labels: Sequence[Any]) -> Tensor | None:
    """All labels at once, where all of them are whole numbers, as most often."""
    try:
        numbers_N = np.asarray(labels)
    except (TypeError, ValueError, RuntimeError):
        return None
    if numbers_N.ndim != 1 or numbers_N.dtype.kind not in "biu":
        return None
    return torch.from_numpy(numbers_N.astype(np.int64))


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
            f"the number of its class, an int from 0. {LEFT_OUT}"
        )
    return number
