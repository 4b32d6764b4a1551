"""Data of a subset, and a check that the subset was selected from it.

A data set of `lipt.common.data` has its fingerprint. For others, the check computes the
coordinator's: of labels and the bytes of image files, or of labels and pixels. Torchvision's
ImageFolder can have both.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from lipt.common.data.loading import MEMORY_BUDGET_BYTES, open_data
from lipt.common.data.sources import frames
from lipt.common.data.sources.rows import fingerprint, numbered_classes
from lipt.common.data.sources.user_data import bytes_of_first
from lipt.common.errors import LiptError, SubsetError

# Errors of reading a data set of an unexpected form.
_UNREADABLE = (LiptError, OSError, TypeError, ValueError, LookupError, AttributeError)

ExampleT_co = TypeVar("ExampleT_co", covariant=True)


class MapStyle(Protocol[ExampleT_co]):
    """A data set with a length, and a row for every number below it."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> ExampleT_co: ...


def row_numbers(indices_N: NDArray[np.int64]) -> array[int]:
    """Return a copy as a sequence of Python ints, of 8 bytes each; DataLoaders pickle it."""
    return array("q", indices_N.tobytes())


def rows_for(subset: Any, data: Any, *, check: bool) -> Any:
    """Return a subset's data as rows, checked: a table is opened, (X, y) becomes pairs."""
    rows = data
    if frames.is_pair(data) and (frames.are_texts(data[0]) or not frames.is_table(data)):
        rows = frames.Pairs(*data)
    elif frames.is_pair(data) or (frames.is_frame(data) and not _has_rows(data)):
        rows = open_data(data, target=_target_of(subset.manifest))
    require_same_data(rows, subset, check=check)
    return rows


def _has_rows(table: Any) -> bool:
    return isinstance(table, list) or frames.is_hugging_face(table)


def _target_of(manifest: Mapping[str, Any]) -> str | None:
    """The column that the subset's labels are in, where one was named."""
    described = manifest.get("data")
    found = described.get("target") if isinstance(described, Mapping) else None
    return found if isinstance(found, str) else None


def require_same_data(dataset: Any, subset: Any, *, check: bool) -> None:
    """Raise SubsetError for a data set that a `Subset` was not selected from.

    Compares lengths, and with `check` fingerprints, of 64 rows or all; see `Subset.apply`.
    """
    if not frames.has_rows(dataset):
        raise SubsetError(
            f"a {type(dataset).__name__} has no rows. Give the data that the subset was chosen "
            "from."
        )
    data, num_rows = subset.manifest.get("data"), len(dataset)
    chosen_from = data.get("num_examples") if isinstance(data, Mapping) else None
    if isinstance(chosen_from, int) and num_rows != chosen_from:
        raise SubsetError(
            f"the subset was chosen from {chosen_from} examples and this data set has {num_rows}. "
            "Give the data set that it was chosen from, whole and in its order."
        )
    if len(subset.indices) and subset.indices[-1] >= num_rows:
        raise SubsetError(
            f"the subset's largest index is {subset.indices[-1]} and this data set has {num_rows} "
            "rows. Give the data set that it was chosen from."
        )
    if not check:
        return
    expected, kind, found, problem = subset.fingerprint, type(dataset).__name__, list[str](), ""
    for candidate in _candidates(dataset, _target_of(subset.manifest)):
        try:
            computed = candidate()
        except _UNREADABLE as error:
            problem = problem or str(error).rstrip(".") or type(error).__name__
            continue
        if computed == expected:
            return
        found.append(computed)
    why = f"that of this {kind} cannot be computed ({problem})"
    if found:
        why = f"this {kind} has {' or '.join(dict.fromkeys(found))}"
    raise SubsetError(
        f"the subset belongs to data with fingerprint {expected}, but {why}. Give the data that "
        "it was chosen from, or check=False if it is that data, in the same order."
    )


def _candidates(dataset: Any, target: str | None) -> Iterator[Callable[[], str]]:
    """Yield functions that compute the fingerprint, the most likely first."""
    if hasattr(dataset, "source_rows"):
        yield lambda: dataset.fingerprint
        return
    samples = getattr(dataset, "samples", None)
    first = samples[0] if isinstance(samples, list) and samples else None
    if isinstance(first, tuple) and len(first) == 2 and isinstance(first[0], str):
        yield partial(_of_files, dataset)
    plain = frames.without_transforms(dataset)
    yield partial(_of_rows, plain, target)
    if plain is not dataset:
        # The user's data set may not work without its transform.
        yield partial(_of_rows, dataset, target)


def _of_rows(dataset: Any, target: str | None) -> str:
    # Images are read one by one, tensors all at once.
    if not frames.is_table(dataset):
        size_of_row = bytes_of_first("reading it", frames.map_style(dataset, target))
        if len(dataset) * size_of_row > MEMORY_BUDGET_BYTES:
            raise SubsetError("its tensors are too large to be looked through")
    rows = frames.rows_in_memory("reading it", dataset, target=target)
    rows.complete_labels()
    return rows.fingerprint()


def _of_files(dataset: Any) -> str:
    samples: list[tuple[str, int]] = dataset.samples
    labels_N = torch.tensor([label for _, label in samples], dtype=torch.int64)
    names = getattr(dataset, "classes", None) or numbered_classes(labels_N, "reading it")
    return fingerprint(labels_N, len(names), lambda row: Path(samples[row][0]).read_bytes())
