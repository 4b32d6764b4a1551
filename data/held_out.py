"""Held-out data: a test set or a target in the form of the training set that a model learns from.

Classes, labels and numbers are matched by their names. A data set without names has numbers, which
are its names. Where only one of the two has words, a word's position is its number.

Shapes: N examples, T targets, C labels.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.errors import DataError
from lipt.common.text import did_you_mean, listed
from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import ImageSpec, InputSpec
from lipt.data.loading import open_set
from lipt.data.registry import plain_table, table_address
from lipt.data.sources.address import quoted_names
from lipt.data.sources.cells import CATEGORIES, number_in
from lipt.data.sources.frames import frame_table, is_frame
from lipt.data.sources.rows import ColumnRows, Labels
from lipt.data.sources.tables.csv_and_json import CSV_OPTIONS
from lipt.data.sources.tables.reading import open_table
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import label_values, number_values

# What messages call a test set in memory.
TEST_DATA = "test data"
_SHOWN = 80


class DataForm(NamedTuple):
    """How a data set is read, so that a few other examples are read alike.

    Attributes:
        inputs: of its examples.
        kind: of its targets.
        names: of its classes, labels or numbers.
        flagged: whether the first column has flags of missing numbers.
        numbers, categories: a table's columns; empty for other data.
        source: its name, as it is opened; "the run's data" and the like of data in memory.
    """

    inputs: InputSpec
    kind: TargetKind
    names: tuple[str, ...]
    flagged: bool = False
    numbers: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    source: str = "the run's data"

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        rows, reading = dataset.rows, dataset.rows.reading
        return cls(
            dataset.inputs,
            dataset.target.kind,
            _names(dataset),
            isinstance(rows, ColumnRows) and rows.flagged,
            tuple(column.name for column in reading if column.is_numeric),
            tuple(column.name for column in reading if column.read_as == CATEGORIES),
            dataset.source,
        )

    def open(
        self,
        name: str,
        data: Any,
        *,
        target: str | None = None,
        allow_modules: Sequence[str] = (),
    ) -> Dataset:
        """Other examples, which may be few or all of one class; `name` is for messages.

        `match` gives them its class numbers. Errors as in `open_data`.
        """
        opened = (
            data if isinstance(data, Dataset) else self._opened(name, data, target, allow_modules)
        )
        self._require_length(opened, name)
        return opened

    def _require_length(self, opened: Dataset, called: str) -> None:
        """Refuse texts of another length, and other data beside texts, before they are sent."""
        kinds = self.kind, opened.target.kind
        if TargetKind.TOKENS not in kinds:
            return
        if opened.target.kind is not self.kind:
            words = [f"has {kind.words} targets" for kind in reversed(kinds)]
            raise self.refused(opened, words, called)
        # A coordinator does not say how many tokens there are.
        if opened.inputs.num_bytes != self.inputs.num_bytes:
            holds = f"holds {opened.inputs}", f"holds {self.inputs}"
            raise self.refused(opened, holds, called)

    def _opened(
        self, name: str, data: Any, target: str | None, allow_modules: Sequence[str]
    ) -> Dataset:
        options = dict[str, Sequence[str]]()
        known = dict.fromkeys((*self.numbers, *self.categories))
        if columns := _columns_of(data) if known else ():
            if missing := [column for column in known if column not in columns]:
                raise DataError(
                    f"{name} has no column {missing[0]!r}.{did_you_mean(missing[0], columns)} Give "
                    f"it the columns of {self.source}: {listed(list(known), 20)}."
                )
            options = {
                "numbers": self.numbers,
                "categories": self.categories,
                "drop": [column for column in columns if column not in known],
                "classes": self.names if self.kind is TargetKind.CLASS else (),
            }
        if self.kind is TargetKind.TOKENS and target is None:
            is_name = isinstance(data, str | Path)
            if plain_table(str(data)) if is_name else is_frame(data):
                target = self._columns_of_texts()
        written = {option: quoted_names(names) for option, names in options.items() if names}
        opened = open_set(
            name, data, target, allow_modules=allow_modules, options=written, min_classes=1
        )
        if isinstance(self.inputs, ImageSpec) and isinstance(opened.inputs, ImageSpec):
            return replace(opened, inputs=self.inputs)
        return opened

    def _columns_of_texts(self) -> str | None:
        """The options that say which columns are texts, and how they are read; None without any."""
        address = table_address(self.source)
        values = {} if address is None else address.values
        beside = {"source", *CSV_OPTIONS}
        return "&".join(f"{name}={values[name]}" for name in values if name not in beside) or None

    def match(self, other: Dataset, called: str) -> Dataset:
        """Other examples with this data's class numbers and flags of missing numbers.

        Messages call them `called`. Raises DataError for other inputs, other targets, or classes
        that this data lacks.
        """
        rows, inputs = other.rows.like(self.inputs, other.inputs, flagged=self.flagged)
        other = replace(other, rows=rows, inputs=inputs)
        if inputs != self.inputs:
            raise self.refused(other, (f"holds {inputs}", f"holds {self.inputs}"), called)
        rows = copy.copy(rows)
        for name, value in _matched(other, self, called)._asdict().items():
            # A copy: rows are frozen for all others.
            object.__setattr__(rows, name, value)
        return replace(other, rows=rows)

    def refused(self, other: Dataset, differ: Sequence[str], called: str) -> DataError:
        form, expected = differ
        return DataError(
            f"{_named(other, called)} {form}, but the training set ({self.source}) {expected}. "
            "Give one with the same inputs, targets and names."
        )


def comparable(test: Dataset, train: Dataset) -> Dataset:
    """The test set in the form of the training set; errors as in `DataForm.match`."""
    return DataForm.of(train).match(test, "the test set")


def _columns_of(data: Any) -> Sequence[str]:
    """The columns of a table's file or a frame; empty for other data."""
    if isinstance(data, str | Path):
        address = table_address(str(data))
        return () if address is None else open_table(address).columns
    return frame_table("data", data).columns if is_frame(data) else ()


def _named(test: Dataset, called: str) -> str:
    return called if test.source == called else f"{called} ({test.source})"


def _matched(test: Dataset, train: DataForm, called: str) -> Labels:
    """The test set's targets, of the training set's kind and with its numbers."""
    kind, names = train.kind, train.names
    values, theirs = _of_kind(kind, test)
    if values is None:
        kinds = [f"has {each.words} targets" for each in (test.target.kind, kind)]
        raise train.refused(test, kinds, called)
    if kind is TargetKind.TOKENS:
        # Of the same vocabulary, as their inputs are equal.
        return Labels(test.rows.labels_N, None, test.rows.targets)
    if kind is TargetKind.CLASS:
        used = values.bincount(minlength=len(theirs)) > 0
        return Labels(_places(test, train, theirs, names, used, called)[values], names)
    used, unnamed = (values != 0).any(dim=0), _by_position(theirs) and _by_position(names)
    if kind is TargetKind.NUMBER or unnamed:
        used[:] = True
        if len(theirs) != len(names):
            widths = [f"has {len(each)} targets a row" for each in (theirs, names)]
            raise train.refused(test, widths, called)
    if len(names) == 1:
        theirs = names
    places = _places(test, train, theirs, names, used, called)
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
        case own, asked if own is asked:
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
    test: Dataset,
    train: DataForm,
    theirs: Sequence[str],
    ours: Sequence[str],
    used: Tensor,
    called: str,
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
            f"{_named(test, called)} has {', '.join(unknown):.{_SHOWN}}, which the training "
            f"set ({train.source}) lacks: it has {', '.join(ours):.{_SHOWN}}. Name classes alike "
            "in both, or leave these rows out."
        )
    # Of names that occur twice, the one in the same place.
    numbers = {name: place for place, name in reversed(list(enumerate(ours)))}
    same = [name == other for name, other in zip(theirs, ours, strict=False)]
    places = [numbers.get(name, 0) for name in theirs]
    places[: len(same)] = [
        place if kept else free
        for place, (kept, free) in enumerate(zip(same, places, strict=False))
    ]
    return torch.tensor(places)


def _are_numbers(names: Sequence[str]) -> bool:
    return all(number_in(name) is not None for name in names)


def _by_position(names: Sequence[str]) -> bool:
    return list(names) == list(map(str, range(len(names))))
