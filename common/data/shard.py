"""A shard: the few examples that one learner trains on, as one safetensors file.

A set in memory travels as pixels, at the size that the model sees:

    images     U8   n x C x H x W
    labels     I64  n

An encoded set travels as its image files, which the reader decodes and fits:

    encoded    U8   E           the n files, one after another
    offsets    I64  n + 1       file i is encoded[offsets[i] : offsets[i + 1]]
    labels     I64  n

Exactly these tensors, no metadata. The same examples give the same bytes. The
peer that sent a shard is not trusted: what its header declares is compared with
what was expected, and with the bytes at hand, before anything is allocated.

Shapes: n examples, C x H x W pixels as the model sees them.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from lipt.common.data.dataset import Dataset
from lipt.common.data.parallel import map_rows, threads_for
from lipt.common.errors import DataError
from lipt.common.images.decode import decode_image
from lipt.common.images.formats import ImageFormat

# A header of three tensors takes about 250 bytes.
_MAX_HEADER_BYTES = 4096
_MAX_IMAGE_SIZE = 4096
# What a shard's files may become when decoded: a small file can declare many pixels.
_MAX_DECODED_BYTES = 8 * 2**30


@dataclass(frozen=True)
class Shard:
    """One learner's examples: uint8 images n x C x H x W, and int64 labels."""

    images: Tensor
    labels_N: Tensor


@dataclass(frozen=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def pack_shard(dataset: Dataset, ids: Tensor) -> bytes:
    """Write the examples `ids`, in that order, as a shard file.

    Args:
        dataset: where the examples are.
        ids: row numbers, int64, at least one.

    Raises:
        IndexError: a row number is outside the data set.
        DataError: an image can no longer be read.
    """
    tensors = {"labels": dataset.labels_N[ids]}
    if dataset.encoded:
        files: dict[int, bytes] = {}
        # Neighbours may share a block of a file, which is then read once.
        for row in sorted(set(ids.tolist())):
            files[row] = dataset.raw_bytes(row)
        parts = [files[row] for row in ids.tolist()]
        offsets = list(itertools.accumulate((len(part) for part in parts), initial=0))
        tensors["encoded"] = torch.frombuffer(bytearray().join(parts), dtype=torch.uint8)
        tensors["offsets"] = torch.tensor(offsets, dtype=torch.int64)
    else:
        tensors["images"] = dataset.images(ids)
    return save(tensors)


def unpack_shard(data: bytes, image: ImageFormat, *, num_examples: int, num_classes: int) -> Shard:
    """Read a shard file and decode its images.

    Args:
        data: the file's bytes.
        image: what the model sees.
        num_examples: how many examples the learner was promised.
        num_classes: labels have to be below it.

    Raises:
        DataError: the bytes are not a shard of that many such examples.
    """
    _require_expected(image, num_examples)
    entries = _read_header(data)
    labels = _int64(data, entries, "labels", num_examples)
    if labels.min() < 0 or labels.max() >= num_classes:
        raise DataError(
            f"the shard has labels from {labels.min()} to {labels.max()}, outside "
            f"0..{num_classes - 1}. {_REMEDY}"
        )
    if "images" in entries:
        _require_names(entries, {"images", "labels"})
        pixels = _uint8(data, entries, "images", (num_examples, *image.shape))
        images = torch.from_numpy(pixels.copy())
    else:
        _require_names(entries, {"encoded", "labels", "offsets"})
        images = _decode(data, entries, image, num_examples)
    return Shard(images, torch.from_numpy(labels))


_REMEDY = "Fetch the shard again; if that does not help, the coordinator is at fault."


def _require_expected(image: ImageFormat, num_examples: int) -> None:
    """What was expected came over the wire, too."""
    channels, height, width = image.shape
    sane = channels in {1, 3} and min(height, width) >= 1 and max(height, width) <= _MAX_IMAGE_SIZE
    if num_examples < 1 or not sane:
        raise DataError(
            f"a shard of {num_examples} images of {channels}x{height}x{width} cannot be used: at "
            f"least 1 image of 1 or 3 channels and 1..{_MAX_IMAGE_SIZE} pixels is needed. Check "
            "the coordinator's data and image size."
        )
    decoded_bytes = num_examples * channels * height * width
    if decoded_bytes > _MAX_DECODED_BYTES:
        raise DataError(
            f"the shard's {num_examples} images of {channels}x{height}x{width} take "
            f"{decoded_bytes} bytes, over the limit of {_MAX_DECODED_BYTES}. Use a smaller "
            "num_minibatches, batch size or image size."
        )


def _read_header(data: bytes) -> dict[str, _Entry]:
    header_bytes = int.from_bytes(data[:8], "little")
    body_begin = 8 + header_bytes
    if header_bytes > _MAX_HEADER_BYTES or body_begin > len(data):
        raise DataError(
            f"{len(data)} bytes with a header of {header_bytes} are no shard; its header takes "
            f"at most {_MAX_HEADER_BYTES}. {_REMEDY}"
        )
    try:
        header = json.loads(data[8:body_begin])
        entries = {name: _entry(declared, body_begin) for name, declared in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"the shard's header is not that of a safetensors file. {_REMEDY}"
        ) from error
    end = body_begin
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != end or entry.end < entry.begin:
            raise DataError(f"the shard's tensors overlap or leave gaps. {_REMEDY}")
        end = entry.end
    if end != len(data):
        raise DataError(f"the shard has {len(data)} bytes where its header says {end}. {_REMEDY}")
    return entries


def _entry(declared: dict[str, object], body_begin: int) -> _Entry:
    dtype, shape, offsets = declared["dtype"], declared["shape"], declared["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise TypeError("a header entry's fields have other types")
    begin, end = offsets
    numbers = [*shape, begin, end]
    if any(type(number) is not int or number < 0 for number in numbers):
        raise TypeError("a header entry's numbers are not counts")
    return _Entry(dtype, tuple(shape), body_begin + begin, body_begin + end)


def _require_names(entries: dict[str, _Entry], names: set[str]) -> None:
    if entries.keys() != names:
        raise DataError(
            f"the shard holds {', '.join(sorted(entries))[:200]} instead of "
            f"{', '.join(sorted(names))}. {_REMEDY}"
        )


def _require_entry(
    entries: dict[str, _Entry], name: str, dtype: str, item_bytes: int, shape: tuple[int, ...]
) -> _Entry:
    entry = entries.get(name)
    if entry is None:
        raise DataError(f"the shard holds no tensor {name!r}. {_REMEDY}")
    if entry.dtype != dtype or entry.shape != shape:
        raise DataError(
            f"the shard's {name!r} is {entry.dtype[:20]} of shape {list(entry.shape)[:8]} instead "
            f"of {dtype} of shape {list(shape)}. {_REMEDY}"
        )
    num_items = 1
    for length in shape:
        num_items *= length
    if entry.end - entry.begin != num_items * item_bytes:
        raise DataError(
            f"the shard's {name!r} has {entry.end - entry.begin} bytes for {num_items} items of "
            f"{item_bytes}. {_REMEDY}"
        )
    return entry


def _int64(data: bytes, entries: dict[str, _Entry], name: str, length: int) -> NDArray[np.int64]:
    entry = _require_entry(entries, name, "I64", 8, (length,))
    return np.frombuffer(data, "<i8", length, entry.begin).astype(np.int64)


def _uint8(
    data: bytes, entries: dict[str, _Entry], name: str, shape: tuple[int, ...]
) -> NDArray[np.uint8]:
    entry = _require_entry(entries, name, "U8", 1, shape)
    flat = np.frombuffer(data, np.uint8, entry.end - entry.begin, entry.begin)
    return flat.reshape(shape)


def _decode(
    data: bytes, entries: dict[str, _Entry], image: ImageFormat, num_examples: int
) -> Tensor:
    offsets = _int64(data, entries, "offsets", num_examples + 1).tolist()
    encoded = _uint8(data, entries, "encoded", (offsets[-1],))
    # An empty file is no image, so every offset is larger than the one before.
    if offsets[0] != 0 or any(a >= b for a, b in itertools.pairwise(offsets)):
        raise DataError(f"the shard's offsets do not rise from 0. {_REMEDY}")
    images_NCHW = torch.empty((num_examples, *image.shape), dtype=torch.uint8)

    def decode(index: int) -> None:
        file = encoded[offsets[index] : offsets[index + 1]].tobytes()
        try:
            images_NCHW[index] = decode_image(file, image.shape)
        except DataError as error:
            raise DataError(f"image {index} of the shard cannot be used: {error}") from error

    num_threads = threads_for(image.height * image.width)
    for _ in map_rows(decode, range(num_examples), num_threads=num_threads):
        pass
    return images_NCHW
