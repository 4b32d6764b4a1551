"""Data of a subset: the check that it was selected from it, its weights in training, its export.

A data set of `lipt.data` has its fingerprint. For others, the check computes the
coordinator's: of labels and the bytes of image files, or of labels and pixels. Torchvision's
ImageFolder can have both.

The exported folder appears atomically; equal subsets of equal data give equal bytes. `subset.json`
in it loads as the subset. In its tar shards (WebDataset) each example has the members ID.cls (class
number), ID.jpg or another image suffix, and ID.json: {"id": row number in the data, "weight": the
strategy's}. ID is the row number in twelve digits. Multi-label and regression examples have a
"target" in ID.json instead of ID.cls. A line of classes.txt is a class's name.

Source: Aizman, Maltby & Breuel 2019, "High Performance I/O For Large Scale Deep Learning"
(arXiv:2001.01858).

Shapes: K examples of the subset, B of a batch, C classes.
"""

from __future__ import annotations

import io
import json
import tarfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import data as torch_data

from lipt.common.computation import computed, thread_defaults
from lipt.common.determinism import restored_generators
from lipt.common.errors import ConfigError, DataError, LiptError, SubsetError
from lipt.data.dataset import Dataset
from lipt.data.images.formats import format_of, to_image
from lipt.data.loading import MEMORY_BUDGET_BYTES, open_data
from lipt.data.objects import chosen_objects, require_other_file
from lipt.data.parallel import Progress, map_rows
from lipt.data.sources import frames
from lipt.data.sources.map_style import Pairs, has_rows, without_transforms
from lipt.data.sources.rows import EncodedRows, PixelRows, fingerprint, numbered_classes
from lipt.data.sources.tables.recognition import names_options
from lipt.data.sources.user_data import KINDS, FactoryRows, bytes_of_first
from lipt.data.sources.webdataset import CLASSES
from lipt.trainer.arguments import checked
from lipt.trainer.files import new_folder

# Errors of reading a data set of an unexpected form.
_UNREADABLE = (LiptError, OSError, TypeError, ValueError, LookupError, AttributeError)

# The keys of an example's weight and soft label, where examples are dictionaries.
WEIGHT, SOFT_LABEL = "weight", "soft_label"

# Suffixes of formats whose name is not their suffix.
_SUFFIXES = {"JPEG": "jpg", "MPO": "jpg", "TIFF": "tif"}
EXAMPLES_PER_SHARD = 10_000
# Concurrent reads from a disk or a network.
_NUM_READERS = 8

ExampleT_co = TypeVar("ExampleT_co", covariant=True)


class MapStyle(Protocol[ExampleT_co]):
    """A data set with a length, and a row for every number below it."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> ExampleT_co: ...


def row_numbers(indices_N: NDArray[np.int64]) -> array[int]:
    """Return a copy as a sequence of Python ints, of 8 bytes each; DataLoaders pickle it."""
    return array("q", indices_N.tobytes())


@computed
def rows_for(subset: Any, data: Any, *, check: bool) -> Any:
    """Return a subset's data as rows, checked: a table is opened, (X, y) becomes pairs."""
    rows = rows_of(data, _target_of(subset))
    require_same_data(rows, subset, check=check)
    return rows


def rows_of(data: Any, target: str | None) -> Any:
    """Return data as rows: a name or a table is opened, (X, y) becomes pairs."""
    if isinstance(data, str | Path):
        return open_data(data, target=target)
    by_row = isinstance(data, list) or frames.is_hugging_face(data)
    if frames.is_pair(data) and (frames.are_texts(data[0]) or not frames.is_table(data)):
        return Pairs(*data)
    if frames.is_pair(data) or (frames.is_frame(data) and not by_row):
        return open_data(data, target=target)
    return data


def _target_of(subset: Any) -> str | None:
    """The name of the subset's label column, if any."""
    name = subset.recorded("data", "target")
    return name if isinstance(name, str) else None


def _options_of(subset: Any) -> str | None:
    """The options of the table's file that a subset was chosen from, as a target of its rows."""
    source = subset.recorded("data", "source")
    options = source.partition("?")[2] if isinstance(source, str) else ""
    return options if names_options(options) else None


@computed
def require_same_data(dataset: Any, subset: Any, *, check: bool) -> None:
    """Raise SubsetError for a data set that a `Subset` was not selected from.

    Compares lengths, and with `check` fingerprints, of 64 rows or all; see `Subset.apply`.
    """
    if not has_rows(dataset):
        raise SubsetError(
            f"a {type(dataset).__name__} has no rows. Give the data that the subset was chosen "
            "from."
        )
    chosen_from, num_rows = subset.recorded("data", "num_examples"), len(dataset)
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
    target, options = _target_of(subset), _options_of(subset)
    is_same, why = has_fingerprint(dataset, subset.fingerprint, target, options)
    if not is_same:
        raise SubsetError(
            f"the subset belongs to data with fingerprint {subset.fingerprint}, but {why}. Give "
            "the data that it was chosen from, or check=False if it is that data, in the same "
            "order."
        )


@computed
def has_fingerprint(
    dataset: Any, fingerprint: str, target: str | None, options: str | None = None
) -> tuple[bool, str]:
    """Whether a data set has this fingerprint, of 64 rows or all, and which it has instead.

    `options` are those of a file's name, which rows in memory have as their target.
    """
    kind, fingerprints, problem = type(dataset).__name__, list[str](), ""
    for candidate in _candidates(dataset, target, options):
        try:
            computed = candidate()
        except _UNREADABLE as error:
            problem = problem or str(error).rstrip(".") or type(error).__name__
            continue
        if computed == fingerprint:
            return True, ""
        fingerprints.append(computed)
    if fingerprints:
        return False, f"this {kind} has {' or '.join(dict.fromkeys(fingerprints))}"
    return False, f"that of this {kind} cannot be computed ({problem})"


def _candidates(
    dataset: Any, target: str | None, options: str | None
) -> Iterator[Callable[[], str]]:
    """Yield functions that compute the fingerprint, the most likely first."""
    if hasattr(dataset, "source_rows"):
        yield lambda: dataset.fingerprint
        return
    samples = getattr(dataset, "samples", None)
    first = samples[0] if isinstance(samples, list) and samples else None
    if isinstance(first, tuple) and len(first) == 2 and isinstance(first[0], str):
        yield partial(_of_files, dataset)
    plain = without_transforms(dataset)
    if getattr(plain, "targets", None) is not None:
        yield partial(_of_rows, plain, target, quick=True)
    yield partial(_of_rows, plain, target)
    if options is not None:
        yield partial(_of_rows, plain, options)
    if isinstance(plain, Pairs):
        for kind in KINDS:
            yield partial(_of_rows, plain, kind)


@restored_generators()
def _of_rows(dataset: Any, target: str | None, *, quick: bool = False) -> str:
    """The fingerprint; `quick` takes the labels of images from `targets`, if rows agree."""
    # Images are read one by one, tensors all at once.
    if not frames.is_table(dataset):
        size_of_row = bytes_of_first("reading it", frames.map_style(dataset, target))
        if len(dataset) * size_of_row > MEMORY_BUDGET_BYTES:
            raise SubsetError("its tensors are too large to be looked through")
    rows = frames.rows_in_memory("reading it", dataset, target=target)
    if not (quick and isinstance(rows, FactoryRows) and rows.take_targets()):
        rows.complete()
    return rows.fingerprint()


def _of_files(dataset: Any) -> str:
    samples: list[tuple[str, int]] = dataset.samples
    labels_N = torch.tensor([label for _, label in samples], dtype=torch.int64)
    names = getattr(dataset, "classes", None) or numbered_classes(labels_N, "reading it")
    return fingerprint(labels_N, len(names), lambda row: Path(samples[row][0]).read_bytes())


def example_losses(
    logits_BC: Tensor,
    labels_B: Tensor,
    soft_labels_BC: Tensor | None = None,
    alpha: float = 0.0,
) -> Tensor:
    """Return each example's unweighted cross-entropy, float32; `alpha` as in `SoftTargetLoss`."""
    targets = labels_B
    if soft_labels_BC is not None:
        targets = soft_targets(labels_B, soft_labels_BC, alpha)
    return functional.cross_entropy(logits_BC.float(), targets, reduction="none")


def soft_targets(labels_B: Tensor, soft_labels_BC: Tensor, alpha: float) -> Tensor:
    """Return (1 - alpha) onehot + alpha soft label; B x C float32."""
    hard_BC = functional.one_hot(labels_B, soft_labels_BC.shape[1])
    return torch.lerp(hard_BC.float(), soft_labels_BC.float(), alpha)


def normalized_weights(weights: Any) -> Tensor:
    """Scale weights to mean 1, N float32; all ones where they sum to 0.

    Args:
        weights: of a subset (`subset.weights`), or the subset; as a tensor, array or list.

    Raises:
        ConfigError: these are no finite weights from 0.
    """
    given = getattr(weights, "weights", weights)
    try:
        weights_N = torch.as_tensor(np.array(given) if isinstance(given, np.ndarray) else given)
        valid = weights_N.ndim == 1 and bool((weights_N.isfinite() & (weights_N >= 0)).all())
    except (TypeError, ValueError, RuntimeError):
        valid = False
    if not valid:
        raise ConfigError(
            f"a {type(weights).__name__} holds no finite weights from 0, one for each example. "
            "Give a subset, or subset.weights."
        )
    mean = weights_N.double().mean()
    return (weights_N / mean).float() if mean > 0 else weights_N.new_ones(len(weights_N))


class WeightedSubsetLoss(nn.Module):
    """A loss that multiplies each example by its weight in the subset.

        loss_of = WeightedSubsetLoss()
        for images, labels, weights in DataLoader(subset.dataset(data), batch_size=64):
            loss = loss_of(model(images), labels, weights)

    `criterion` returns one loss per example; None for `nn.CrossEntropyLoss(reduction="none")`.
    """

    @checked
    def __init__(self, criterion: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self._criterion = criterion or example_losses

    def forward(self, outputs: Tensor, targets: Tensor, weights_B: Tensor) -> Tensor:
        """Return the mean of loss times weight, 0-d; ConfigError unless one loss per example."""
        losses_B = self._criterion(outputs, targets)
        if losses_B.shape != weights_B.shape:
            raise ConfigError(
                f"the criterion gave losses of shape {list(losses_B.shape)} for weights of shape "
                f"{list(weights_B.shape)}. Let it give one loss for each example: "
                'reduction="none", and a mean over what an example has several of.'
            )
        return (losses_B * weights_B).mean()


class SoftTargetLoss(nn.Module):
    """Cross-entropy with targets between an example's label and its soft label.

        loss_of = SoftTargetLoss(subset.recommended_alpha)
        for images, labels, weights, soft_labels in DataLoader(subset.dataset(data)):
            loss = loss_of(model(images), labels, weights, soft_labels)

    `alpha` is the soft label's share of the target; ConfigError outside [0, 1].
    """

    @checked
    def __init__(self, alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(
        self, logits_BC: Tensor, labels_B: Tensor, weights_B: Tensor, soft_labels_BC: Tensor
    ) -> Tensor:
        """Return the mean over the batch of each example's loss times its weight, 0-d."""
        losses_B = example_losses(logits_BC, labels_B, soft_labels_BC, self.alpha)
        return (losses_B * weights_B).mean()


class UnweightedWarning(UserWarning):
    """A weighted subset's examples are used without their weights."""


class WeightedData(torch_data.Dataset[Any]):
    """Selected examples, each with its weight and soft label last, or under their own keys."""

    @thread_defaults()
    def __init__(self, rows: MapStyle[Any], subset: Any) -> None:
        self._rows, self._indices = rows, row_numbers(subset.indices)
        self._columns = {WEIGHT: normalized_weights(subset)}
        if subset.soft_labels is not None:
            self._columns[SOFT_LABEL] = torch.from_numpy(subset.soft_labels.astype(np.float32))

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: int) -> Any:
        row = self._rows[self._indices[place]]
        more = {key: column[place] for key, column in self._columns.items()}
        if isinstance(row, Mapping):
            return {**row, **more}
        return (*(row if isinstance(row, tuple | list) else (row,)), *more.values())


class WeightedCollate:
    """Adds weights and soft labels to the batches of your own collate function.

        loader = DataLoader(subset.dataset(data), collate_fn=WeightedCollate(pad))

    They come last in a batch's tuple, or under "weight" and "soft_label" in a dictionary. The
    DataLoader's default collate needs no such wrapper. `collate` batches the data's own examples.
    """

    @checked
    def __init__(self, collate: Callable[[list[Any]], Any] = torch_data.default_collate) -> None:
        self._collate = collate

    def __call__(self, examples: Sequence[Any]) -> Any:
        """Return a batch with its B weights, and B x C soft labels if any."""
        if isinstance(examples[0], Mapping):
            plain = [dict(example) for example in examples]
            keys = [key for key in (WEIGHT, SOFT_LABEL) if key in plain[0]]
            more = {key: torch.stack([example.pop(key) for example in plain]) for key in keys}
            batch = self._collate(plain)
            batch.update(more)
            return batch
        # A weight is one number, a soft label a row of numbers.
        last = 2 if examples[0][-1].ndim else 1
        batch = self._collate([tuple(example[:-last]) for example in examples])
        columns = zip(*(example[-last:] for example in examples), strict=True)
        return (*batch, *map(torch.stack, columns))


@computed
def json_lines(subset: Any, data: Any, path: Path, *, check: bool) -> Iterator[str]:
    """A `Subset`'s rows as JSON objects, for a file at `path`; see `Subset.to_jsonl`."""
    parts: dict[str, tuple[Any, int]] = {}
    if isinstance(data, Mapping) and not frames.is_frame(data):
        require_other_file(path, *data.values())
        parts = _parts_of(subset, data)
    else:
        require_other_file(path, data)
        parts["the data"] = data, len(rows_for(subset, data, check=check))
    return _lines_of(subset, parts)


def _parts_of(subset: Any, sources: Mapping[str, Any]) -> dict[str, tuple[Any, int]]:
    """Each source's data and size, in the order of a mixture's sources."""
    sizes = subset.recorded("data", "sources")
    if not isinstance(sizes, Mapping) or sizes.keys() != {*map(str, sources)}:
        known = ", ".join(sizes) if isinstance(sizes, Mapping) else "one data set"
        raise SubsetError(
            f"the subset was chosen from {known}, not from {', '.join(map(str, sources))}. Give "
            "the data that it was chosen from."
        )
    named = {str(name): data for name, data in sources.items()}
    return {name: (named[name], int(size)) for name, size in sizes.items()}


def _lines_of(subset: Any, parts: Mapping[str, tuple[Any, int]]) -> Iterator[str]:
    added: dict[str, Any] = {}
    if subset.is_weighted:
        added[WEIGHT] = subset.weights
    if subset.soft_labels is not None:
        added[SOFT_LABEL] = subset.soft_labels
    start = 0
    for data, size in parts.values():
        first, last = np.searchsorted(subset.indices, [start, start + size]).tolist()
        rows = (subset.indices[first:last] - start).tolist()
        for place, row_object in enumerate(chosen_objects(data, rows, num_rows=size), start=first):
            yield row_object.adding(
                {name: column[place].tolist() for name, column in added.items()}
            )
        start += size


class ChosenImage(NamedTuple):
    """One example; `content` is an image file, `target` a class number or a list of numbers."""

    row: int
    weight: float
    target: Any
    content: bytes
    suffix: str


def export_shards(subset: Any, data: Any, folder: Path, on_progress: Progress | None) -> list[Path]:
    """Write a `Subset`'s images as shards; see `Subset.to_webdataset`."""
    dataset = open_data(data)
    if not len(subset.indices):
        raise SubsetError("the subset is empty, so there is nothing to write. Get another.")
    require_same_data(dataset, subset, check=True)
    starts = range(0, len(subset.indices), EXAMPLES_PER_SHARD)
    names = [f"shard-{number:06d}.tar" for number, _ in enumerate(starts)]
    with new_folder(folder) as unfinished:
        images = _chosen_images(subset, dataset, on_progress)
        for name in names:
            _write_tar(unfinished / name, islice(images, EXAMPLES_PER_SHARD))
        if dataset.rows.targets is None:
            # Line breaks in a name become spaces, so that line numbers stay class numbers.
            lines = (" ".join(name.splitlines()) + "\n" for name in dataset.class_names)
            # Folder names that are not UTF-8 are escaped.
            content = "".join(lines).encode(errors="backslashreplace")
            (unfinished / CLASSES).write_bytes(content)
        subset.save(unfinished / "subset.json")
    return [folder / name for name in names]


def _chosen_images(
    subset: Any, dataset: Dataset, on_progress: Progress | None
) -> Iterator[ChosenImage]:
    rows = dataset.source_rows
    if isinstance(rows, EncodedRows):
        read, num_threads = partial(_file_of, rows), _NUM_READERS
    elif isinstance(rows, PixelRows):
        read, num_threads = partial(_png_of, rows), 1
    else:
        raise DataError(
            f"{dataset.source} holds no images, but {dataset.inputs}, and only images are written "
            "out. Take subset.apply(data), or the rows by subset.indices."
        )
    numbers = row_numbers(subset.indices)
    files = map_rows(read, numbers, num_threads=num_threads, progress=on_progress)
    targets = dataset.targets_N
    for row, weight, file in zip(numbers, subset.weights, files, strict=True):
        yield ChosenImage(row, float(weight), targets[row].tolist(), *file)


def _file_of(rows: EncodedRows, row: int) -> tuple[bytes, str]:
    content = rows.raw(row)
    try:
        form = format_of(io.BytesIO(content))
    except DataError as error:
        raise DataError(
            f"image {row} of {rows.source} ({rows.where(row)}) cannot be used: {error}. Replace it."
        ) from error
    return content, _SUFFIXES.get(form, form.lower())


def _png_of(rows: PixelRows, row: int) -> tuple[bytes, str]:
    file = io.BytesIO()
    to_image(rows.pixels(row)).save(file, "PNG")
    return file.getvalue(), "png"


def _write_tar(path: Path, images: Iterator[ChosenImage]) -> None:
    # No times or owners, so that equal images give equal bytes.
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for image in images:
            said: dict[str, Any] = {"id": image.row, "weight": image.weight}
            members = {image.suffix: image.content}
            if isinstance(image.target, int):
                members = {"cls": str(image.target).encode(), **members}
            else:
                said["target"] = image.target
            members["json"] = json.dumps(said).encode()
            for suffix, content in members.items():
                member = tarfile.TarInfo(f"{image.row:012d}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
