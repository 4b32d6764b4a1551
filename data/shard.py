"""Shard: one learner's training examples, as one safetensors file.

    images       U8   n x C x H x W   of a set in memory: pixels at the size that the model sees

    encoded      U8   E               of an encoded set: the n image files, one after another
    offsets      I64  n + 1           file i is encoded[offsets[i] : offsets[i + 1]]

    column.NAME       n x its shape   of other examples: columns, each of its own type; "column."
                                      where a lone column has no name

    labels       I64  n               with each of these, or, without a single class,
    targets      U8   n x C           1 for each label of an example, or
                 F64  n x T           its numbers, in the data's own units, or
                 I64  n x L           the next token at each position, -1 where none counts

Exactly these tensors, without metadata; equal examples give equal bytes. A shard's sender is not
trusted: the header is checked against the task and the file's size before allocation.

Shapes: n examples, B of a batch, C x H x W pixels as the model sees them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipt.common.errors import BlobTooLargeError, DataError, WeightsError
from lipt.common.tensor_files import Container, TensorSpec, pack, quoted, read_container
from lipt.data.dataset import Dataset
from lipt.data.images.formats import decode_image
from lipt.data.inputs.model_input import Stored
from lipt.data.inputs.specs import (
    MAX_COLUMNS,
    ColumnsFormat,
    ImageFormat,
    InputFormat,
    spec_of,
)
from lipt.data.parallel import map_rows, threads_for
from lipt.data.targets.kinds import TargetKind
from lipt.data.targets.values import MASKED, NextTokens, Target

# One more than a shard has; the container limits its header by it.
_MAX_TENSORS = 4
MAX_COLUMN_TENSORS = MAX_COLUMNS + 2
_MAX_IMAGE_SIZE = 4096
# A small file can declare many pixels.
_MAX_BYTES = 8 * 2**30
COLUMN = "column."
_REMEDY = "Fetch the shard again; if that does not help, the coordinator is at fault."


class EncodedImages:
    """Image files, decoded on first use and kept as pixels; for one thread at a time."""

    def __init__(
        self, files: NDArray[np.uint8], offsets: Sequence[int], image: ImageFormat
    ) -> None:
        self._files: NDArray[np.uint8] | None = files
        self._offsets = offsets
        self._image = image
        self._missing = set(range(len(offsets) - 1))
        self._images_NCHW = torch.empty((len(self), *image.shape), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def rows(self, rows_B: Tensor) -> Tensor:
        """Pixels of some images, uint8 B x C x H x W, on the CPU."""
        self._decode(rows_B.tolist())
        return self._images_NCHW[rows_B]

    def all(self) -> Tensor:
        """Pixels of all images, without a copy."""
        self._decode(range(len(self)))
        return self._images_NCHW

    def _decode(self, rows: Sequence[int]) -> None:
        files = self._files
        if files is None:
            return
        missing = [row for row in rows if row in self._missing]

        def decode(row: int) -> None:
            file = files[self._offsets[row] : self._offsets[row + 1]].tobytes()
            try:
                self._images_NCHW[row] = decode_image(file, self._image.shape)
            except DataError as error:
                raise DataError(f"image {row} of the shard cannot be used: {error}") from error

        num_threads = threads_for(self._image.height * self._image.width)
        for _ in map_rows(decode, missing, num_threads=num_threads):
            pass
        self._missing.difference_update(missing)
        if not self._missing:
            self._files = None


@dataclass(frozen=True)
class Shard:
    """One learner's stored examples, and their targets: int64 labels, or n x T."""

    examples: Stored | EncodedImages
    targets_N: Tensor


def pack_shard(dataset: Dataset, ids: Tensor, metadata: dict[str, str] | None = None) -> bytes:
    """Pack examples as a shard file, in the order of their ids; a shard has no metadata."""
    name, targets_N = (
        "labels" if dataset.rows.targets is None else "targets",
        dataset.targets_N[ids],
    )
    tensors = {name: targets_N.double() if targets_N.is_floating_point() else targets_N}
    if dataset.encoded:
        # Sorted: neighbours may share a block of a file, which is then read once.
        files = {row: dataset.raw_bytes(row) for row in sorted(set(ids.tolist()))}
        parts = [files[row] for row in ids.tolist()]
        offsets = list(itertools.accumulate((len(part) for part in parts), initial=0))
        tensors["encoded"] = torch.frombuffer(bytearray().join(parts), dtype=torch.uint8)
        tensors["offsets"] = torch.tensor(offsets, dtype=torch.int64)
        return pack(tensors, metadata)
    stored = dataset.examples(ids)
    if isinstance(stored, Tensor):
        return pack({"images": stored, **tensors}, metadata)
    columns = {COLUMN + name: values for name, values in stored.items()}
    return pack({**columns, **tensors}, metadata)


def open_shard(data: bytes, inputs: InputFormat, *, num_examples: int, target: Target) -> Shard:
    """Read an untrusted shard file; raises DataError unless it has the expected examples.

    Image files are decoded on demand, or at once if they are larger than their pixels.
    """
    _require_expected(inputs, num_examples)
    columns = isinstance(inputs, ColumnsFormat)
    container = shard_container(data, MAX_COLUMN_TENSORS if columns else _MAX_TENSORS)
    if container.metadata:
        raise DataError(f"the shard has metadata, and needs none. {_REMEDY}")
    return examples_of(container, inputs, num_examples=num_examples, target=target)


def shard_container(
    source: bytes | Path,
    max_tensors: int,
    max_metadata_bytes: int = 0,
    *,
    called: str = "the shard",
    remedy: str = _REMEDY,
) -> Container:
    """The tensors of an untrusted shard file, of which only the header is checked."""
    try:
        return read_container(
            source,
            max_bytes=source.stat().st_size if isinstance(source, Path) else len(source),
            max_tensors=max_tensors,
            max_metadata_bytes=max_metadata_bytes,
        )
    except (WeightsError, BlobTooLargeError) as error:
        # Its remedy is about a model's weights.
        raise DataError(f"{called} cannot be read: {error.problem}. {remedy}") from error


def examples_of(
    container: Container, inputs: InputFormat, *, num_examples: int, target: Target
) -> Shard:
    """The examples of an untrusted shard's tensors; errors as in `open_shard`."""
    _require_expected(inputs, num_examples)
    expected = _expected(container, inputs, num_examples, target)
    given_specs, needed = container.specs, {name: spec for name, (spec, _) in expected.items()}
    for name in sorted(given_specs.keys() | needed.keys()):
        if given_specs.get(name) != needed.get(name):
            raise DataError(
                f"the shard's {quoted(name)} is {given_specs.get(name, 'missing')} instead of "
                f"{needed.get(name, 'missing')}. {_REMEDY}"
            )
    tensors = {
        name: _tensor(container, name, num_values)
        for name, (_, num_values) in expected.items()
        if name != "encoded"
    }
    targets_N = tensors.pop("labels" if target.kind is TargetKind.CLASS else "targets")
    if isinstance(target, NextTokens) and not _are_next_tokens(targets_N, target):
        raise DataError(
            f"the shard's targets are not tokens in {MASKED}..{target.num_tokens - 1} with one in "
            f"each text. {_REMEDY}"
        )
    if isinstance(inputs, ColumnsFormat):
        stored = {name.removeprefix(COLUMN): values for name, values in tensors.items()}
        return Shard(stored, targets_N)
    if "images" in tensors:
        return Shard(tensors["images"], targets_N)
    encoded, offsets = container.values("encoded"), tensors["offsets"].tolist()
    # An empty file is no image, so offsets rise strictly.
    rise = all(before < after for before, after in itertools.pairwise(offsets))
    if offsets[0] != 0 or offsets[-1] != encoded.size or not rise:
        raise DataError(f"the shard's offsets do not rise from 0 to {encoded.size}. {_REMEDY}")
    images = EncodedImages(encoded, offsets, inputs)
    large = encoded.size > num_examples * spec_of(inputs).num_bytes
    return Shard(images.all() if large else images, targets_N)


def _are_next_tokens(targets_NL: Tensor, target: NextTokens) -> bool:
    in_range = targets_NL.min() >= MASKED and targets_NL.max() < target.num_tokens
    return bool(in_range and (targets_NL != MASKED).any(dim=1).all())


def _require_expected(inputs: InputFormat, num_examples: int) -> None:
    """Check the expected sizes, which also come from a peer."""
    spec = spec_of(inputs)
    num_bytes = num_examples * spec.num_bytes
    sane = num_examples >= 1 and num_bytes <= _MAX_BYTES
    if isinstance(inputs, ImageFormat):
        channels, height, width = inputs.shape
        sane = sane and channels in {1, 3} and min(height, width) >= 1
        sane = sane and max(height, width) <= _MAX_IMAGE_SIZE
    if not sane:
        raise DataError(
            f"a shard of {num_examples} examples of {spec}, {num_bytes} bytes, cannot be used: at "
            f"least 1 is needed, and images of 1 or 3 channels and 1..{_MAX_IMAGE_SIZE} pixels. "
            f"Check the coordinator's data, or use a smaller batch, for {_MAX_BYTES} bytes."
        )


def _expected(
    container: Container, inputs: InputFormat, num_examples: int, target: Target
) -> dict[str, tuple[TensorSpec, int]]:
    """Each tensor's spec, and the number of its values, or 0 for any."""
    if target.kind is TargetKind.CLASS:
        labels = {"labels": (TensorSpec((num_examples,), torch.int64), target.num_outputs)}
    elif isinstance(target, NextTokens):
        labels = {"targets": (TensorSpec((num_examples, target.length), torch.int64), 0)}
    else:
        dtype = torch.uint8 if target.kind is TargetKind.CLASSES else torch.float64
        labels = {"targets": (TensorSpec((num_examples, target.num_outputs), dtype), 2)}
    if isinstance(inputs, ColumnsFormat):
        columns = {
            COLUMN + column.name: (
                TensorSpec((num_examples, *column.shape), column.type.dtype),
                column.num_values,
            )
            for column in inputs.spec.columns
        }
        return {**labels, **columns}
    if "images" in container.specs:
        return {**labels, "images": (TensorSpec((num_examples, *inputs.shape), torch.uint8), 0)}
    # The files' total length is checked against the offsets.
    encoded = container.specs.get("encoded")
    return {
        **labels,
        "offsets": (TensorSpec((num_examples + 1,), torch.int64), 0),
        "encoded": (TensorSpec((encoded.num_bytes if encoded else 0,), torch.uint8), 0),
    }


def _tensor(container: Container, name: str, num_values: int) -> Tensor:
    """Finite numbers, flags of 0 and 1, or whole numbers in 0..num_values-1; 0 allows any."""
    if container.specs[name].dtype == torch.bool and container.values(name).max() > 1:
        raise DataError(f"the shard's {name!r} has bytes that are neither 0 nor 1. {_REMEDY}")
    values_N = container.tensor(name)
    if values_N.is_floating_point():
        if not bool(values_N.isfinite().all()):
            raise DataError(f"the shard's {name!r} has values that are not finite. {_REMEDY}")
    elif num_values and (values_N.min() < 0 or values_N.max() >= num_values):
        raise DataError(
            f"the shard's {name!r} has values from {int(values_N.min())} to "
            f"{int(values_N.max())}, outside 0..{num_values - 1}. {_REMEDY}"
        )
    return values_N
