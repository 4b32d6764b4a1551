"""Joining: the examples of several data sets, one after another, as one data set.

Classes are matched by their names. Positions in the joined set are those of the first part, then
those of the next one, and so on.

Shapes: N examples, B of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.determinism import derive_generator
from lipt.common.errors import DataError
from lipt.common.text import listed
from lipt.data.dataset import Dataset
from lipt.data.held_out import DataForm
from lipt.data.images.formats import Header
from lipt.data.inputs.specs import ImageSpec, InputSpec
from lipt.data.sources.rows import (
    ArrayRows,
    ColumnRows,
    EncodedRows,
    ImageRows,
    Labels,
    Rows,
    SourceLabels,
)
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import token_values

MOST_TARGET = 10_000


@dataclass(frozen=True)
class StackedRows(ImageRows):
    """Images of several sources, of which some are in memory and others are files."""

    parts: tuple[ImageRows, ...]
    concurrent: ClassVar[bool] = False

    def check(self, row: int) -> Header:
        part, own = self._place(row)
        return part.check(own)

    def read(
        self, row: int, channels: int, size: tuple[int, int]
    ) -> tuple[Header, NDArray[np.uint8]]:
        part, own = self._place(row)
        return part.read(own, channels, size)

    def raw(self, row: int) -> bytes:
        part, own = self._place(row)
        return part.raw(own)

    def examples(self, rows_B: Tensor, inputs: InputSpec, num_threads: int) -> Tensor:
        if not isinstance(inputs, ImageSpec):
            return super().examples(rows_B, inputs, num_threads)
        images_BCHW = torch.empty(len(rows_B), *inputs.shape, dtype=torch.uint8)
        for part, start in zip(self.parts, self._starts, strict=True):
            own = torch.nonzero((rows_B >= start) & (rows_B < start + len(part))).flatten()
            if len(own):
                images_BCHW[own] = part.examples(rows_B[own] - start, inputs, num_threads)
        return images_BCHW

    @property
    def _starts(self) -> list[int]:
        return list(accumulate(map(len, self.parts[:-1]), initial=0))

    def _place(self, row: int) -> tuple[ImageRows, int]:
        part, start = next(
            (part, start)
            for part, start in zip(self.parts, self._starts, strict=True)
            if row < start + len(part)
        )
        return part, row - start


def joined(parts: Sequence[tuple[str, Dataset]]) -> Dataset:
    """Named data sets of one kind of example as one, with the classes of all.

    Each part is a source. DataError for parts of different kinds or sizes, or without classes.
    """
    (first_name, first), *_ = parts
    are_texts = first.target.kind is TargetKind.TOKENS
    for name, part in parts:
        # Numbers are standardized by their own part's mean; next tokens are the same in each.
        differ = part.inputs != first.inputs or part.target.kind is not first.target.kind
        if differ or (part.rows.targets is not None and not are_texts):
            raise DataError(
                f"{name} holds {part}, and {first_name} {first}. Give sources and a target with "
                "examples of one kind and size, and classes: image_size=64."
            )
    datasets = [part for _, part in parts]
    names = tuple(dict.fromkeys(chain.from_iterable(part.class_names for part in datasets)))
    labels = [
        torch.tensor([names.index(name) for name in part.class_names])[part.rows.labels_N]
        for part in datasets
    ]
    sizes = torch.tensor([part.num_ids for part in datasets])
    places_N = torch.arange(len(parts)).repeat_interleave(sizes)
    sources = SourceLabels(tuple(name for name, _ in parts), places_N)
    if are_texts:
        whole_NL = torch.cat([part.targets_N for part in datasets])
        targets = token_values(whole_NL, first.target.num_outputs)
        return _stacked(datasets, Labels(targets.strata_N, None, targets), sources)
    return _stacked(datasets, Labels(torch.cat(labels), names), sources)


def appended(pool: Dataset, *added: Dataset) -> Dataset:
    """The pool with other examples after it, which are read as its own.

    Raises DataError for other inputs, other targets, or classes that the pool lacks.
    """
    form, parts = DataForm.of(pool), [pool]
    for more in added:
        of_images = isinstance(pool.inputs, ImageSpec) and isinstance(more.inputs, ImageSpec)
        read = replace(more, inputs=pool.inputs) if of_images else more
        parts.append(form.match(read, "the target"))
    labels_N = torch.cat([part.rows.labels_N for part in parts])
    own = pool.rows.targets
    if own is None:
        return _stacked(parts, Labels(labels_N, pool.class_names), None)
    given = [part.rows.targets.values for part in parts if part.rows.targets is not None]
    values = torch.cat([values.to(own.values.dtype) for values in given])
    targets = replace(own, values=values, strata_N=labels_N)
    return _stacked(parts, Labels(labels_N, None, targets), None)


def most_of(target: Dataset) -> Dataset:
    """The examples of a target, or as many of them as are used."""
    if len(target) <= MOST_TARGET:
        return target
    drawn = torch.randperm(len(target), generator=derive_generator(0, "mixture target"))
    return taken(target, drawn[:MOST_TARGET])


def taken(dataset: Dataset, positions: Tensor) -> Dataset:
    """Some examples, in this order, as a data set of their own."""
    ids = dataset.id_mapping.ids(positions)
    rows, targets = dataset.rows, dataset.rows.targets
    labelled: dict[str, Any] = {
        "labels_N": rows.labels_N[ids],
        "stamp": None,
        "files": None,
        "sources": None,
    }
    if targets is not None:
        values, strata_N = targets.values[ids], targets.strata_N[ids]
        labelled["targets"] = replace(targets, values=values, strata_N=strata_N)
    else:
        labelled["names"] = rows.class_names
    if isinstance(rows, ColumnRows):
        some = {name: values[ids] for name, values in rows.tensors.items()}
        rows = replace(rows, **labelled, tensors=some, paired_NP=None)
    elif isinstance(rows, EncodedRows):
        files, numbers = rows, ids.tolist()
        rows = replace(
            files,
            **labelled,
            open=lambda row: files.open(numbers[row]),
            where=lambda row: files.where(numbers[row]),
        )
    else:
        images_NCHW = dataset.images(positions).numpy()
        rows = ArrayRows(rows.source, **labelled, images_NCHW=images_NCHW)
    some_rows: dict[str, Any] = {"stamp": None, "again": None, "quarantined": (), "excludes": False}
    return replace(dataset, rows=rows, fingerprint=rows.fingerprint(), **some_rows)


def _stacked(parts: Sequence[Dataset], labels: Labels, sources: SourceLabels | None) -> Dataset:
    first, starts = parts[0], accumulate((part.num_ids for part in parts[:-1]), initial=0)
    unusable = [
        start + row for part, start in zip(parts, starts, strict=True) for row in part.quarantined
    ]
    rows = replace(
        _rows([part.rows for part in parts], labels), targets=labels.targets, sources=sources
    )
    return replace(
        first,
        rows=rows,
        fingerprint=rows.fingerprint(),
        stamp=None,
        again=None,
        quarantined=tuple(unusable),
        excludes=bool(unusable),
    )


def _rows(parts: Sequence[Rows], labels: Labels) -> Rows:
    labelled = ("sources", labels.names, labels.labels_N)
    arrays = [part.images_NCHW for part in parts if isinstance(part, ArrayRows)]
    tables = [part for part in parts if isinstance(part, ColumnRows)]
    images = [part for part in parts if isinstance(part, ImageRows)]
    if len(arrays) == len(parts) and len({array.shape[1:] for array in arrays}) == 1:
        return ArrayRows(*labelled, np.concatenate(arrays))
    if len(tables) == len(parts):
        columns = tables[0].columns
        tensors = {
            column.name: torch.cat([part.tensors[column.name] for part in tables])
            for column in columns
        }
        return ColumnRows(*labelled, columns, tensors, flagged=tables[0].flagged)
    encoded = [part for part in parts if isinstance(part, EncodedRows)]
    if len(encoded) == len(parts):
        files = [(part, row) for part in encoded for row in range(len(part))]
        return EncodedRows(
            *labelled,
            open=lambda row: files[row][0].open(files[row][1]),
            where=lambda row: files[row][0].where(files[row][1]),
        )
    if len(images) == len(parts):
        return StackedRows(*labelled, tuple(images))
    kinds = listed(sorted({type(part).__name__ for part in parts}), 5)
    raise DataError(f"the sources are read in different ways: {kinds}. Give all in one form.")
