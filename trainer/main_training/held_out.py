"""Held-out data: a test set in the form of the training set that a model learns from.

Classes, labels and numbers are matched by their names. A data set without names has numbers, which
are its names. Where only one of the two has words, a word's position is its number.

Shapes: N examples, T targets, C labels.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.errors import DataError
from lipt.data.dataset import Dataset
from lipt.data.sources.rows import Labels
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import label_values, number_values

# What messages call a test set in memory.
TEST_DATA = "test data"
_SHOWN = 80


def comparable(test: Dataset, train: Dataset) -> Dataset:
    """Return the test set with the training set's class numbers and flags of missing numbers.

    Raises DataError for other inputs, other targets, or classes that the training set lacks.
    """
    rows, inputs = test.rows.like(train.rows, test.inputs)
    test = replace(test, rows=rows, inputs=inputs)
    if test.inputs != train.inputs:
        raise _refused(test, train, f"holds {test.inputs}", f"holds {train.inputs}")
    rows = copy.copy(rows)
    for name, value in _matched(test, train)._asdict().items():
        # A copy: rows are frozen for all others.
        object.__setattr__(rows, name, value)
    return replace(test, rows=rows)


def _refused(test: Dataset, train: Dataset, found: str, wanted: str) -> DataError:
    return DataError(
        f"the test set ({test.source}) {found}, but the training set ({train.source}) {wanted}. "
        "Give a test set with the same inputs, targets and names."
    )


def _matched(test: Dataset, train: Dataset) -> Labels:
    """The test set's targets, of the training set's kind and with its numbers."""
    kind, names = train.target.kind, _names(train)
    values, theirs = _of_kind(kind, test)
    if values is None:
        kinds = (f"has {each.target.kind.words} targets" for each in (test, train))
        raise _refused(test, train, *kinds)
    if kind is TargetKind.CLASS:
        used = values.bincount(minlength=len(theirs)) > 0
        return Labels(_places(test, train, theirs, names, used)[values], names)
    used, unnamed = (values != 0).any(dim=0), _by_position(theirs) and _by_position(names)
    if kind is TargetKind.NUMBER or unnamed:
        used[:] = True
        if len(theirs) != len(names):
            widths = (f"has {len(each)} targets a row" for each in (theirs, names))
            raise _refused(test, train, *widths)
    if len(names) == 1:
        theirs = names
    places = _places(test, train, theirs, names, used)
    matched_NT = values.new_zeros(len(values), len(names))
    matched_NT[:, places[used]] = values[:, used]
    values_of = label_values if kind is TargetKind.CLASSES else number_values
    targets = values_of(matched_NT, names, test.source)
    return Labels(targets.strata_N, None, targets)


def _names(dataset: Dataset) -> tuple[str, ...]:
    targets = dataset.rows.targets
    return dataset.class_names if targets is None else targets.names


def _of_kind(kind: TargetKind, test: Dataset) -> tuple[Tensor | None, tuple[str, ...]]:
    """The test set's targets as those of another kind and their names; None if they are none.

    A test set may be too small to tell classes from numbers, or have one label in every row.
    """
    rows, names = test.rows, _names(test)
    values = rows.labels_N if rows.targets is None else rows.targets.values
    match test.target.kind, kind:
        case found, wanted if found is wanted:
            return values, names
        case TargetKind.CLASS, TargetKind.CLASSES:
            return functional.one_hot(values, len(names)), names
        case TargetKind.CLASS, TargetKind.NUMBER if _are_numbers(names):
            return torch.tensor(list(map(float, names)))[values][:, None], ("0",)
        case TargetKind.NUMBER, TargetKind.CLASS if values.shape[1] == 1 and bool(
            (values == values.round()).all()
        ):
            classes, labels_N = torch.unique(values[:, 0].long(), return_inverse=True)
            return labels_N, tuple(map(str, classes.tolist()))
    return None, names


def _places(
    test: Dataset, train: Dataset, theirs: Sequence[str], ours: Sequence[str], used: Tensor
) -> Tensor:
    """The training set's number of each class of the test set; DataError where one has none."""
    by_kind = {_are_numbers(names): names for names in (theirs, ours)}
    apart = len(by_kind) == 2 and not set(theirs) & set(ours)
    if apart and len(by_kind[False]) >= len(by_kind[True]):
        # Each number is the position of a word.
        positions = tuple(map(str, range(len(by_kind[False]))))
        theirs, ours = (names if _are_numbers(names) else positions for names in (theirs, ours))
    unknown = [name for name, there in zip(theirs, used.tolist(), strict=True) if there]
    unknown = [name for name in unknown if name not in ours]
    if unknown:
        raise DataError(
            f"the test set ({test.source}) has {', '.join(unknown):.{_SHOWN}}, which the training "
            f"set ({train.source}) lacks: it has {', '.join(ours):.{_SHOWN}}. Name classes alike "
            "in both, or leave these rows out."
        )
    # Of names that occur twice, the one in the same place.
    numbers = {name: place for place, name in reversed(list(enumerate(ours)))}
    same = [name == other for name, other in zip(theirs, ours, strict=False)]
    places = [numbers.get(name, 0) for name in theirs]
    places[: len(same)] = [
        place if kept else found
        for place, (kept, found) in enumerate(zip(same, places, strict=False))
    ]
    return torch.tensor(places)


def _are_numbers(names: Sequence[str]) -> bool:
    return all(map(_is_number, names))


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _by_position(names: Sequence[str]) -> bool:
    return list(names) == list(map(str, range(len(names))))
