"""Data of a subset: the forms in which people have it, and whether it is what was chosen from.

    (X, y)                          arrays, tensors, lists, a pandas frame and series
    datasets.Dataset                Hugging Face's; its image, else what is not the label
    a map-style data set            as it is; torchvision's without its transforms

Indices mean nothing on other data. A data set of `lipt.common.data` knows its fingerprint; that
of any other is computed as the coordinator computed it, from what the set gives away:

    Hugging Face's `datasets.Dataset`     its labels and its images' encoded bytes
    `samples` of (path, label)            the image files (torchvision's ImageFolder)
    pairs of image and label              the pixels, torchvision's transforms left out

A coordinator may have opened an image folder as files or as pixels, so one set can have two.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from lipt.common.config.fingerprint_kind import FingerprintKind
from lipt.common.errors import DataError, LiptError, SubsetError

if TYPE_CHECKING:
    from lipt.common.data.sources.rows import Rows

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


# So many are plain ints at a time.
_BLOCK = 16_384


class RowNumbers(Sequence[int]):
    """A sequence of ints.

    Args:
        indices_N: int64; not copied.
    """

    def __init__(self, indices_N: NDArray[np.int64]) -> None:
        self._indices_N = indices_N

    def __len__(self) -> int:
        return len(self._indices_N)

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> Self: ...

    def __getitem__(self, place: int | slice) -> int | Self:
        if isinstance(place, slice):
            return type(self)(self._indices_N[place])
        return int(self._indices_N[place])

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self), _BLOCK):
            yield from self._indices_N[start : start + _BLOCK].tolist()


# What reading somebody else's data set may raise, which looks like one of these and is none.
_UNREADABLE = (LiptError, OSError, TypeError, ValueError, LookupError, AttributeError)

ExampleT_co = TypeVar("ExampleT_co", covariant=True)
TableT_co = TypeVar("TableT_co", covariant=True)


class MapStyle(Protocol[ExampleT_co]):
    """A data set with a length and a row for every number below it."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> ExampleT_co: ...


class Selectable(Protocol[TableT_co]):
    """What selects its own rows, as `datasets.Dataset` does."""

    def __len__(self) -> int: ...

    def select(self, indices: list[int], /) -> TableT_co:
        """The rows of these numbers, in their order."""
        ...


class Chosen(Protocol):
    """A `Subset`, whose module imports this one."""

    @property
    def indices(self) -> NDArray[np.int64]: ...  # noqa: D102
    @property
    def weights(self) -> NDArray[np.float32]: ...  # noqa: D102
    @property
    def fingerprint(self) -> str: ...  # noqa: D102
    @property
    def manifest(self) -> Mapping[str, Any]: ...  # noqa: D102
    def save(self, path: Path) -> Path: ...  # noqa: D102


def require_same_data(dataset: Any, subset: Chosen, *, check: bool) -> None:
    """Check that a data set is the one that a subset was chosen from.

    Args:
        dataset: has the length that the manifest knows, and a row for each index; nothing
            overrides this.
        subset: what was chosen.
        check: whether the fingerprint is compared too. 64 rows are read; all of them where
            the fingerprint is a full one, or pairs of image and label come without `targets`.

    Raises:
        SubsetError: it is another data set, or one whose fingerprint cannot be computed; the
            message says how to override.
    """
    data, num_rows = subset.manifest.get("data"), len(dataset)
    expected = data.get("num_examples") if isinstance(data, Mapping) else None
    if isinstance(expected, int) and num_rows != expected:
        raise SubsetError(
            f"the subset was chosen from {expected} examples and this data set has {num_rows}. "
            "Give the data set that it was chosen from, whole and in its order."
        )
    if len(subset.indices) and subset.indices[-1] >= num_rows:
        raise SubsetError(
            f"the subset's largest index is {subset.indices[-1]} and this data set has {num_rows} "
            "rows. Give the data set that it was chosen from."
        )
    if check:
        _require_fingerprint(subset.fingerprint, dataset)


def _require_fingerprint(expected: str, dataset: Any) -> None:
    kind = type(dataset).__name__
    found: list[str] = []
    problem = ""
    for candidate in _candidates(dataset):
        try:
            fingerprint = candidate(expected)
        except _UNREADABLE as error:
            problem = problem or str(error).rstrip(".") or type(error).__name__
            continue
        if fingerprint == expected:
            return
        found.append(fingerprint)
    if found:
        raise SubsetError(
            f"the subset belongs to data with fingerprint {expected}, but this {kind} has "
            f"{' or '.join(dict.fromkeys(found))}. Give the data that it was chosen from; "
            "check=False applies it all the same."
        )
    raise SubsetError(
        f"the subset belongs to data with fingerprint {expected}, and that of this {kind} cannot "
        f"be computed ({problem}). Pass check=False if it is that data, in the same order."
    )


def _candidates(dataset: Any) -> Iterator[Callable[[str], str]]:
    """The ways to a data set's fingerprint, the likeliest first; of the kind that one given is."""
    own: Callable[[str], str] | None = getattr(dataset, "fingerprint_like", None)
    if own is not None:
        yield own
        return
    if is_table(dataset):
        yield partial(_of_table, dataset)
        # As a program of the user's own reads it: pixels, where the coordinator has files.
        yield partial(_of_adapted, dataset)
        # A function of the user's own may have given it as rows of tensors.
        yield partial(_of_pairs, dataset)
        return
    if _lists_files(dataset):
        yield partial(_of_files, dataset)
    plain = without_transforms(dataset)
    yield partial(_of_pairs, plain)
    if plain is not dataset:
        # A set of the user's own may not work without its transform.
        yield partial(_of_images, dataset)


def _of_pairs(dataset: Any, like: str) -> str:
    from lipt.common.data.loading import MEMORY_BUDGET_BYTES  # noqa: PLC0415 - torch
    from lipt.common.data.sources.user_data import bytes_of_first, rows_of_data  # noqa: PLC0415

    # Images are read one by one, tensors all at once.
    if len(dataset) * bytes_of_first("reading it", dataset) > MEMORY_BUDGET_BYTES:
        raise SubsetError("its tensors are too large to be looked through")
    return _of_rows(rows_of_data("reading it", dataset), like)


def _of_images(dataset: Any, like: str) -> str:
    from lipt.common.data.sources.user_data import FactoryRows  # noqa: PLC0415

    return _of_rows(FactoryRows("reading it", dataset), like)


def _of_rows(rows: Rows, like: str) -> str:
    from lipt.common.data.fingerprinting import fingerprint  # noqa: PLC0415 - torch

    rows.complete_labels()
    kind = FingerprintKind.of(like)
    num_classes = len(rows.class_names)
    return fingerprint(rows.labels_N, num_classes, rows.raw, kind, targets=rows.targets)


def _of_adapted(table: Any, like: str) -> str:
    return _of_pairs(map_style(table), like)


def _lists_files(dataset: Any) -> bool:
    samples = getattr(dataset, "samples", None)
    return isinstance(samples, list) and all(
        isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[0], str)
        for sample in samples[:1]
    )


def _of_files(dataset: Any, like: str) -> str:
    samples: list[tuple[str, int]] = dataset.samples

    def raw(row: int) -> bytes:
        return Path(samples[row][0]).read_bytes()

    labels = [label for _, label in samples]
    return _fingerprint(labels, getattr(dataset, "classes", None), raw, like)


def _of_table(table: Any, like: str) -> str:
    """Of a `datasets.Dataset`; its storage is read, not what its own format decodes."""
    from lipt.common.data.sources.parquet import IMAGE_COLUMNS, LABEL_COLUMNS  # noqa: PLC0415 - torch

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

    return _fingerprint(
        storage[:][labels[0]].to_numpy(), getattr(features[labels[0]], "names", None), raw, like
    )


def _fingerprint(labels: Any, names: Any, raw: Callable[[int], bytes], like: str) -> str:
    import torch  # noqa: PLC0415 - not before it is needed

    from lipt.common.data.fingerprinting import fingerprint  # noqa: PLC0415 - torch
    from lipt.common.data.sources.rows import numbered_classes  # noqa: PLC0415 - torch

    labels_N = torch.from_numpy(np.array(labels, dtype=np.int64))
    classes = names or numbered_classes(labels_N, "reading it")
    return fingerprint(labels_N, len(classes), raw, FingerprintKind.of(like))
