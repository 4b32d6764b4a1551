"""Reading: what a user's rows say of their targets, told apart by what it is made of.

    an int                                one class                   single-label
    a vector of 0 and 1                   a place for every label     multi-label
    a list of names                       the labels that it has      multi-label
    a float, or a vector of floats        numbers to be told          regression

Shapes: N rows.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.targets.kinds import ALL_KINDS, kinds_in_words
from lipt.common.targets.values import TargetValues, label_values, number_values

LEFT_OUT = (
    f"Targets are {kinds_in_words(ALL_KINDS)}: a class number, labels, or numbers. Of data with "
    "boxes, masks or sequences choose by features: give one vector of each example as its input, "
    "with a class or a number that matters to you."
)


def is_class(target: Any) -> bool:
    """Whether a row's target is a whole number, and so a class."""
    if isinstance(target, Tensor | np.ndarray | np.generic):
        array = _array(target)
        return array.size == 1 and array.ndim <= 1 and array.dtype.kind in "biu"
    return isinstance(target, numbers.Integral)


def read_targets(
    targets: Sequence[Any], names: Sequence[str] | None, source: str
) -> TargetValues | None:
    """The targets of all rows, one of each; None where they are classes.

    `names` are those of labels or numbers, in the order of their places; None takes the sorted
    names that rows have, or counts places.
    """
    if all(map(is_class, targets)):
        return None
    if any(_is_names(target) for target in targets):
        return _named_labels(targets, names, source)
    vectors = [_vector(target, source, row) for row, target in enumerate(targets)]
    widths = {vector.size for vector in vectors}
    if len(widths) > 1:
        raise DataError(
            f"{source}: its rows have from {min(widths)} to {max(widths)} numbers as targets. Give "
            f"as many for every row. {LEFT_OUT}"
        )
    stacked = torch.from_numpy(np.stack(vectors).astype(np.float64))
    single = all(_is_scalar(target) for target in targets)
    whole = all(vector.dtype.kind in "biu" for vector in vectors)
    binary = bool(((stacked == 0) | (stacked == 1)).all())
    # A whole number alone is a class; beside floats it is a number like them.
    if not single and (whole or binary):
        return label_values(stacked, names, source)
    return number_values(stacked, names, source)


def _is_scalar(target: Any) -> bool:
    return isinstance(target, numbers.Real) or _array(target).ndim == 0


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
    found = sorted({name for target in targets for name in target})
    labels = found if names is None else list(names)
    unknown = [name for name in found if name not in set(labels)]
    if unknown:
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
        array = _array(target)
    except (TypeError, ValueError, RuntimeError):
        array = np.empty((0, 0, 0))
    if array.ndim > 1 or not array.size or array.dtype.kind not in "biuf":
        shape = getattr(target, "shape", None)
        what = f"a {type(target).__name__}" + (f" of shape {tuple(shape)}" if shape else "")
        raise DataError(f"{source}: the target of row {row} is {what}. {LEFT_OUT}")
    return array.reshape(-1)


def _array(target: Any) -> np.ndarray:
    if isinstance(target, Tensor):
        detached = target.detach().cpu()
        # NumPy has no bfloat16.
        return (detached.float() if detached.is_floating_point() else detached).numpy()
    return np.asarray(target)
