"""Data of a subset: the accepted forms, and a check that a subset was selected from it.

    a table or texts                as `lipt.common.data.sources.frames` reads them
    (X, y)                          arrays, tensors, lists; also in dictionaries, by name
    datasets.Dataset                Hugging Face's; its image, else all columns but the label
    a map-style data set            unchanged; torchvision's without its transforms

A data set of `lipt.common.data` has its fingerprint. For others, the check computes the
coordinator's: of labels and encoded bytes (`datasets.Dataset`, ImageFolder's `samples`), or of
labels and pixels. An image folder can have both.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from lipt.common.errors import ConfigError, DataError, LiptError, SubsetError
from lipt.common.imports import modules_of

if TYPE_CHECKING:
    from lipt.common.data import Dataset

_TRANSFORMS = ("transform", "target_transform", "transforms")
_LABELS = ("label", "labels", "fine_label", "target", "class")

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


class Pairs:
    """Rows of (example, label) from two columns; text labels are numbered alphabetically."""

    def __init__(self, examples: Any, labels: Any) -> None:
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
        plain = self._examples.get("") if not self._named else None
        if isinstance(plain, np.ndarray) and plain.ndim == 2 and plain.dtype.kind in "biu":
            self._examples[""] = plain.astype(np.float32)
        if isinstance(next(iter(values), None), str):
            names, numbers = np.unique(np.asarray(values).astype(str), return_inverse=True)
            self.classes = tuple(names.tolist())
            values = numbers.reshape(-1)
        self.targets = values

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        label = self.targets[row]
        if self._named:
            return {name: column[row] for name, column in self._examples.items()}, label
        example = self._examples[""][row]
        # Readers take an array's last dimension for the channels.
        if isinstance(example, np.ndarray) and example.ndim == 3:
            first, last = example.shape[0] in (1, 3), example.shape[-1] in (1, 3)
            example = example.transpose(1, 2, 0) if first and not last else example
        return example, label


class TablePairs:
    """Rows of (example, label) from a Hugging Face `datasets.Dataset`; attributes as in `Pairs`."""

    def __init__(self, table: Any) -> None:
        features = table.features
        kinds = {name: type(features[name]).__name__ for name in features}
        classes = [name for name in features if kinds[name] == "ClassLabel"]
        named = [name for name in _LABELS if name in features]
        labels = [name for name in named if name in classes] or classes or named
        if not labels:
            raise DataError(
                f"the table has the columns {', '.join(features)}, and none of them is called "
                "label or holds class labels. Rename the column with the labels to label."
            )
        label = labels[0]
        images = [name for name in features if kinds[name] == "Image"]
        self._columns = images[:1] or [name for name in features if name != label]
        self._table = table
        self.targets = _array(table.select_columns([label]).with_format("arrow")[:][label])
        if names := getattr(features[label], "names", None):
            self.classes = tuple(names)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        example = self._table[row]
        values = {name: example[name] for name in self._columns}
        return next(iter(values.values())) if len(values) == 1 else values, self.targets[row]


def open_data(
    data: Any,
    *,
    target: str | None = None,
    image_size: int | None = None,
    allow_modules: Sequence[str] = (),
) -> Dataset:
    """Open data by its name or in any form; a `Dataset` unchanged. As `lipt.open_dataset`."""
    from lipt.common.data import Dataset, dataset_of, open_dataset  # noqa: PLC0415 - torch
    from lipt.common.data.loading import name_with_target  # noqa: PLC0415
    from lipt.common.data.sources.frames import is_table  # noqa: PLC0415

    if isinstance(data, str | Path):
        name = str(data) if target is None else name_with_target(str(data), target)
        modules = (*allow_modules, *modules_of(name))
        return open_dataset(name, image_size=image_size, allowed_modules=modules)
    if isinstance(data, Dataset):
        if target is not None:
            raise ConfigError(
                f"target={target!r} was given together with {data.source}, which is open already. "
                "Give it where the data is opened."
            )
        return data
    rows = map_style(data)
    if target == "number" and not is_table(rows):
        rows, target = as_numbers(rows), None
    return dataset_of(rows, target=target, image_size=image_size)


def map_style(data: Any) -> Any:
    """Return rows of (example, label), without random transforms; a table or texts unchanged."""
    from lipt.common.data.sources.frames import is_pair, is_table  # noqa: PLC0415 - torch

    plain = without_transforms(data)
    if is_table(plain):
        return plain
    if is_pair(plain):
        return Pairs(*plain)
    return TablePairs(plain) if is_hugging_face(plain) else plain


def rows_of(data: Any, manifest: Mapping[str, Any]) -> Any:
    """Return a subset's data as rows: a table is opened, (X, y) becomes pairs."""
    from lipt.common.data.sources import frames  # noqa: PLC0415 - torch

    if frames.is_pair(data) and (frames.are_texts(data[0]) or not frames.is_table(data)):
        return Pairs(*data)
    has_rows = isinstance(data, list) or is_hugging_face(data)
    if frames.is_pair(data) or (frames.is_frame(data) and not has_rows):
        return open_data(data, target=_target_of(manifest))
    return data


def _target_of(manifest: Mapping[str, Any]) -> str | None:
    """The name of the subset's label column, if any."""
    described = manifest.get("data")
    found = described.get("target") if isinstance(described, Mapping) else None
    return found if isinstance(found, str) else None


def as_numbers(rows: Any) -> Any:
    """Return a copy of a data set whose targets are numbers, whole ones included."""
    found = copy.copy(rows)
    try:
        found.target = "number"
    except AttributeError:
        raise ConfigError(
            f"target='number' cannot be set on a {type(rows).__name__}. Give (X, y), or a data set "
            'with the attribute target = "number".'
        ) from None
    return found


def has_rows(data: Any) -> bool:
    """Whether data has a length: classes and single numbers have the method alone."""
    try:
        len(data)
    except TypeError:
        return False
    return True


def is_hugging_face(data: Any) -> bool:
    """Whether data is a Hugging Face `datasets.Dataset`; its package need not be installed."""
    return hasattr(data, "features") and hasattr(data, "with_format") and hasattr(data, "__len__")


def without_transforms(dataset: Any) -> Any:
    """Return a data set without torchvision transforms, as a shallow copy if it has any."""
    given = [name for name in _TRANSFORMS if getattr(dataset, name, None) is not None]
    if not given:
        return dataset
    plain = copy.copy(dataset)
    for name in given:
        try:
            setattr(plain, name, None)
        except AttributeError:  # a property, unlike torchvision's attribute
            return dataset
    return plain


def _array(values: Any) -> Any:
    if not hasattr(values, "to_numpy"):
        return values
    found = values.to_numpy()
    # Tables give read-only views, and torch warns about them.
    return found if found.flags.writeable else found.copy()


def require_same_data(dataset: Any, subset: Any, *, check: bool) -> None:
    """Raise SubsetError for a data set that a `Subset` was not selected from.

    Compares lengths, and with `check` fingerprints, of 64 rows or all; see `Subset.apply`.
    """
    if not has_rows(dataset):
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
            fingerprint = candidate()
        except _UNREADABLE as error:
            problem = problem or str(error).rstrip(".") or type(error).__name__
            continue
        if fingerprint == expected:
            return
        found.append(fingerprint)
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
    elif is_hugging_face(dataset):
        yield partial(_of_table, dataset)
        # As pixels, if the program reads the table; then as rows of tensors.
        yield lambda: _of_pairs(map_style(dataset), target)
        yield partial(_of_pairs, dataset, target)
    else:
        samples = getattr(dataset, "samples", None)
        first = samples[0] if isinstance(samples, list) and samples else None
        if isinstance(first, tuple) and len(first) == 2 and isinstance(first[0], str):
            yield partial(_of_files, dataset)
        plain = without_transforms(dataset)
        yield partial(_of_pairs, plain, target)
        if isinstance(plain, Pairs):
            yield lambda: _of_pairs(as_numbers(plain), target)
        if plain is not dataset:
            # The user's data set may not work without its transform.
            yield partial(_of_pairs, dataset, target)


def _of_pairs(dataset: Any, target: str | None) -> str:
    from lipt.common.data.loading import MEMORY_BUDGET_BYTES  # noqa: PLC0415 - torch
    from lipt.common.data.sources.frames import is_table, rows_in_memory  # noqa: PLC0415
    from lipt.common.data.sources.user_data import bytes_of_first  # noqa: PLC0415

    # Images are read one by one, tensors all at once.
    size_of_row = 0 if is_table(dataset) else bytes_of_first("reading it", dataset)
    if len(dataset) * size_of_row > MEMORY_BUDGET_BYTES:
        raise SubsetError("its tensors are too large to be looked through")
    rows = rows_in_memory("reading it", dataset, target=target if is_table(dataset) else None)
    rows.complete_labels()
    return rows.fingerprint()


def _of_files(dataset: Any) -> str:
    samples: list[tuple[str, int]] = dataset.samples
    labels = [label for _, label in samples]
    names = getattr(dataset, "classes", None)
    return _of_bytes(labels, names, lambda row: Path(samples[row][0]).read_bytes())


def _of_table(table: Any) -> str:
    """Compute the fingerprint from a `datasets.Dataset`'s storage, without decoding."""
    from lipt.common.data.sources.table_files import IMAGE_COLUMNS, LABEL_COLUMNS  # noqa: PLC0415 - torch

    features = table.features
    images = [name for name in IMAGE_COLUMNS if name in features]
    labels = [name for name in LABEL_COLUMNS if name in features]
    if not images or not labels:
        raise SubsetError(
            f"it has the columns {', '.join(features)}, none called image or none called label"
        )
    storage = table.with_format("arrow")

    def raw(row: int) -> bytes:
        image = storage[row][images[0]][0].as_py()
        content = image.get("bytes") if isinstance(image, dict) else None
        if not isinstance(content, bytes):
            raise SubsetError(f"its column {images[0]} does not hold the images' bytes")
        return content

    names = getattr(features[labels[0]], "names", None)
    return _of_bytes(storage[:][labels[0]].to_numpy(), names, raw)


def _of_bytes(labels: Any, names: Any, raw: Callable[[int], bytes]) -> str:
    import torch  # noqa: PLC0415 - slow

    from lipt.common.data.sources.rows import fingerprint, numbered_classes  # noqa: PLC0415 - torch

    labels_N = torch.from_numpy(np.array(labels, dtype=np.int64))
    classes = names or numbered_classes(labels_N, "reading it")
    return fingerprint(labels_N, len(classes), raw)
