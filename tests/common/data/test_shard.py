"""Shapes: n examples, C x H x W pixels."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from torch import Tensor

from lipt.common.data import Dataset, Shard, open_dataset, pack_shard, unpack_shard
from lipt.common.data.loading import load
from lipt.common.data.shard import EncodedShard, open_shard
from lipt.common.data.sources.rows import ArrayRows
from lipt.common.errors import DataError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.model_input import images_in
from lipt.common.targets.values import SingleLabel, Target

Encode = Callable[..., bytes]


def image_format(channels: int, height: int, width: int) -> ImageFormat:
    return ImageFormat(channels, height, width, (0.0,) * channels, (1.0,) * channels)


def unpack(
    data: bytes,
    shape: tuple[int, int, int] = (1, 1, 2),
    *,
    num_examples: int = 2,
    target: Target | None = None,
) -> Shard:
    return unpack_shard(
        data,
        image_format(*shape),
        num_examples=num_examples,
        target=SingleLabel(3) if target is None else target,
    )


def array_set(images_NCHW: np.ndarray, labels: list[int]) -> Dataset:
    rows = ArrayRows("made", ("a", "b", "c"), torch.tensor(labels), images_NCHW)
    return load(rows, image_size=None, memory_budget_bytes=2**30, progress=None)


def tiny() -> Dataset:
    return array_set(np.array([[[[1, 2]]], [[[3, 4]]], [[[5, 6]]]], np.uint8), [0, 1, 2])


def shard_file(header: dict[str, object] | bytes, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


LABELS = struct.pack("<qq", 2, 0)
PIXELS = bytes([5, 6, 1, 2])
GOOD = {"labels": entry("I64", [2], 0, 16), "images": entry("U8", [2, 1, 1, 2], 16, 20)}


def test_pixels_have_the_documented_bytes() -> None:
    header = json.dumps(GOOD, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    expected = struct.pack("<Q", len(header)) + header + LABELS + PIXELS
    assert pack_shard(tiny(), torch.tensor([2, 0])) == expected


def test_the_library_writes_the_same_bytes(image_folder: Path) -> None:
    for source, budget in (("pixels", 2**30), ("files", 0)):
        data = open_dataset(f"imagefolder:{image_folder}", image_size=7, memory_budget_bytes=budget)
        packed = pack_shard(data, torch.tensor([4, 0, 4]))
        assert safetensors.torch.save(safetensors.torch.load(packed)) == packed, source


def test_files_have_the_documented_tensors(image_folder: Path) -> None:
    data = open_dataset(f"imagefolder:{image_folder}", memory_budget_bytes=0)
    packed = pack_shard(data, torch.tensor([4, 0, 4]))
    dog, cat = data.raw_bytes(4), data.raw_bytes(0)
    tensors = safetensors.torch.load(packed)
    assert tensors.keys() == {"encoded", "labels", "offsets"}
    assert bytes(tensors["encoded"].tolist()) == dog + cat + dog
    ends = [0, len(dog), len(dog) + len(cat), 2 * len(dog) + len(cat)]
    assert tensors["offsets"].tolist() == ends
    assert tensors["labels"].tolist() == [1, 0, 1]
    assert packed == pack_shard(data, torch.tensor([4, 0, 4]))


@pytest.mark.parametrize("budget", [2**30, 0])
def test_comes_back_as_the_data_set_has_it(image_folder: Path, budget: int) -> None:
    source = f"imagefolder:{image_folder}"
    data = open_dataset(source, image_size=7, memory_budget_bytes=budget)
    ids = torch.tensor([3, 1, 4])
    packed = pack_shard(data, ids)
    shard = unpack_shard(packed, image_format(3, 7, 7), num_examples=3, target=SingleLabel(2))
    assert torch.equal(images_in(shard.examples), data.images(ids))
    assert images_in(shard.examples).dtype == torch.uint8
    assert shard.targets_N.tolist() == [1, 0, 1]
    assert shard.targets_N.dtype == torch.int64


@given(
    shape=st.tuples(
        st.integers(1, 6), st.sampled_from([1, 3]), st.integers(1, 9), st.integers(1, 9)
    ),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_pixels_of_any_shape_come_back(
    shape: tuple[int, int, int, int], seed: int, data: st.DataObject
) -> None:
    images = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    labels = data.draw(st.lists(st.integers(0, 2), min_size=shape[0], max_size=shape[0]))
    ids = data.draw(st.lists(st.integers(0, shape[0] - 1), min_size=1, max_size=8))
    packed = pack_shard(array_set(images, labels), torch.tensor(ids))
    shard = unpack_shard(
        packed, image_format(*shape[1:]), num_examples=len(ids), target=SingleLabel(3)
    )
    assert np.array_equal(images_in(shard.examples).numpy(), images[ids])
    assert shard.targets_N.tolist() == [labels[row] for row in ids]


def test_the_shard_may_be_written_to() -> None:
    shard = unpack(pack_shard(tiny(), torch.tensor([2, 0])))
    images_in(shard.examples).zero_()
    shard.targets_N.zero_()


def changed(name: str, made: dict[str, object] | None) -> dict[str, object]:
    header: dict[str, object] = dict(GOOD)
    if made is None:
        del header[name]
    else:
        header[name] = made
    return header


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (
            changed("images", entry("U8", [2, 1, 2, 1], 16, 20)),
            r"'images' is uint8\[2, 1, 2, 1\] instead of uint8\[2, 1, 1, 2\]",
        ),
        (changed("images", entry("I8", [2, 1, 1, 2], 16, 20)), r"is int8\[2, 1, 1, 2\] instead of"),
        (changed("images", entry("U8", [2**40, 2**40, 1, 1], 16, 20)), r"but lies at 16\.\.20"),
        (changed("images", entry("U8", [2, 1, 1, 2], 12, 16)), "lies at byte 12, expected at 16"),
        (changed("images", None), "describes 16 bytes, 20 are there"),
        (
            changed("extra", entry("U8", [0], 20, 20)),
            "holds 'extra', 'images', 'labels' instead",
        ),
        ({"images": entry("U8", [20], 0, 20)}, "holds 'images' instead of 'images', 'labels'"),
        (changed("__metadata__", {"a": "b"}), "has metadata"),
        (b"[" * 4000, "not a JSON object"),
        (b"{" * 4000, "not JSON"),
        (b"{" + b" " * 4999, "header of 5000 bytes; at most 4096 are read"),
    ],
)
def test_refuses_a_hostile_header(header: dict[str, object] | bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence) as caught:
        unpack(shard_file(header, LABELS + PIXELS))
    assert "Fetch the shard again" in str(caught.value)
    assert "weights" not in str(caught.value)


@pytest.mark.parametrize("label", [-1, 3, 2**62])
def test_refuses_labels_of_no_class(label: int) -> None:
    with pytest.raises(DataError, match=rf"from .*{label}.*outside 0\.\.2"):
        unpack(shard_file(dict(GOOD), struct.pack("<qq", label, 0) + PIXELS))


@pytest.mark.parametrize(
    ("shape", "num_examples"),
    [((2, 1, 2), 2), ((1, 0, 2), 2), ((3, 5000, 1), 2), ((1, -1, 2), 2), ((1, 1, 2), 0)],
)
def test_refuses_impossible_expectations(shape: tuple[int, int, int], num_examples: int) -> None:
    data = pack_shard(tiny(), torch.tensor([2, 0]))
    with pytest.raises(
        DataError, match="cannot be used: at least 1 is needed, and images of 1 or 3 channels"
    ):
        unpack(data, shape, num_examples=num_examples)


def test_refuses_more_pixels_than_the_limit_before_reading() -> None:
    with pytest.raises(
        DataError, match=r"1000000 examples of 3x4096x4096 images .*over the limit of 85899345"
    ):
        unpack(b"", (3, 4096, 4096), num_examples=10**6)


def encoded_file(files: list[bytes], offsets: list[int] | None = None) -> bytes:
    """A shard of encoded images with labels 0, 1, ..., and offsets of one's own."""
    body = b"".join(files)
    rising = [sum(len(file) for file in files[:i]) for i in range(len(files) + 1)]
    tensors: dict[str, Tensor] = {
        "labels": torch.arange(len(files)),
        "offsets": torch.tensor(offsets if offsets is not None else rising),
        "encoded": torch.tensor(list(body), dtype=torch.uint8),
    }
    return safetensors.torch.save(tensors)


def test_decodes_files_of_several_formats(encode: Encode) -> None:
    files = [encode(1), encode(2, kind="JPEG", size=(30, 9)), encode(3, mode="L")]
    shard = unpack(encoded_file(files), (3, 12, 10), num_examples=3)
    assert images_in(shard.examples).shape == (3, 3, 12, 10)
    assert torch.equal(images_in(shard.examples)[2, 0], images_in(shard.examples)[2, 2])


@pytest.mark.parametrize(
    ("offsets", "sentence"),
    [
        ([0, 5, 5, 10], "offsets do not rise from 0 to 10"),
        ([0, 7, 3, 10], "offsets do not rise from 0 to 10"),
        ([1, 3, 7, 10], "offsets do not rise from 0 to 10"),
        ([-5, 3, 7, 10], "offsets do not rise from 0 to 10"),
        ([0, 3, 7, 9], "offsets do not rise from 0 to 10"),
        ([0, 3, 7, 11], "offsets do not rise from 0 to 10"),
        ([0, 3, 7, -1], "offsets do not rise from 0 to 10"),
        ([0, 3, 10], r"'offsets' is int64\[3\] instead of int64\[4\]"),
        ([0, 3, 7, 2**62], "offsets do not rise from 0 to 10"),
    ],
)
def test_refuses_offsets_that_do_not_cut_the_files(offsets: list[int], sentence: str) -> None:
    data = encoded_file([b"abc", b"defg", b"hij"], offsets)
    with pytest.raises(DataError, match=sentence):
        unpack(data, (3, 12, 10), num_examples=3)


def test_a_corrupt_image_is_named_by_its_place(encode: Encode) -> None:
    data = encoded_file([encode(), encode()[:-40], encode()])
    with pytest.raises(DataError, match=r"image 1 of the shard cannot be used: it is not a whole"):
        unpack(data, (3, 12, 10), num_examples=3)


def test_opened_files_are_decoded_when_they_are_asked_for(encode: Encode) -> None:
    data = encoded_file([encode(1), encode(2)[:-40], encode(3)])
    shard = open_shard(data, image_format(3, 64, 64), num_examples=3, target=SingleLabel(3))
    assert isinstance(shard, EncodedShard)
    assert shard.targets_N.tolist() == [0, 1, 2]
    assert shard.examples.rows(torch.tensor([2, 0])).shape == (2, 3, 64, 64)
    with pytest.raises(DataError, match="image 1 of the shard cannot be used"):
        shard.examples.all()


@pytest.mark.parametrize(("more", "kind"), [(0, EncodedShard), (1, Shard)])
def test_files_that_take_more_than_their_pixels_are_decoded_at_once(
    encode: Encode, more: int, kind: type
) -> None:
    # What comes after an image's end is not looked at.
    file = encode(1)
    size = 24 * 20 * 3
    assert len(file) < size
    data = encoded_file([file + bytes(size - len(file) + more)])
    shard = open_shard(data, image_format(3, 24, 20), num_examples=1, target=SingleLabel(3))
    assert type(shard) is kind


def test_opened_pixels_are_the_unpacked_ones() -> None:
    packed = pack_shard(tiny(), torch.tensor([2, 0]))
    shard = open_shard(packed, image_format(1, 1, 2), num_examples=2, target=SingleLabel(3))
    assert isinstance(shard, Shard)
    assert torch.equal(images_in(shard.examples), images_in(unpack(packed).examples))


def test_refuses_files_and_pixels_together(encode: Encode) -> None:
    tensors = safetensors.torch.load(encoded_file([b"abc", b"d"]))
    both = safetensors.torch.save(tensors | {"images": torch.zeros(2, 1, 1, 2, dtype=torch.uint8)})
    with pytest.raises(DataError, match="holds 'encoded', 'images', 'labels', 'offsets' instead"):
        unpack(both)


@given(
    position=st.integers(0, 10**6), value=st.integers(0, 255), cut=st.none() | st.integers(0, 10**6)
)
def test_damaged_bytes_are_refused_or_a_shard(position: int, value: int, cut: int | None) -> None:
    data = bytearray(pack_shard(tiny(), torch.tensor([2, 0])))
    data[position % len(data)] = value
    if cut is not None:
        del data[cut % len(data) :]
    try:
        shard = unpack(bytes(data))
    except DataError:
        return
    assert images_in(shard.examples).shape == (2, 1, 1, 2)
    assert bool(((shard.targets_N >= 0) & (shard.targets_N < 3)).all())


@given(data=st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(DataError):
        unpack(data)
