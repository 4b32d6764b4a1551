import gc
import itertools
import json
import struct
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from lipt.common.errors import DataError
from lipt.common.tensor_files import pack
from lipt.data import shard
from lipt.data.dataset import Dataset, input_format
from lipt.data.images.formats import decode_image
from lipt.data.inputs.model_input import images_in
from lipt.data.inputs.specs import Column, ColumnFormat, ColumnsFormat, ColumnType, ImageFormat
from lipt.data.loading import load, open_dataset
from lipt.data.shard import EncodedImages, Shard, open_shard, pack_shard
from lipt.data.sources.rows import ArrayRows
from lipt.data.sources.user_data import rows_of_data
from lipt.data.targets.values import MultiLabel, NextTokens, Regression, SingleLabel
from tests.data.columns import SIZES, TOKENS, column_rows
from tests.image_files import FORMAT, encoded, files_of, made_up

Encode = Callable[..., bytes]


def image_format(channels: int, height: int, width: int) -> ImageFormat:
    return ImageFormat(channels, height, width, (0.0,) * channels, (1.0,) * channels)


def unpack(data: bytes, shape: tuple[int, int, int] = (1, 1, 2), *, num_examples: int = 2) -> Shard:
    inputs = image_format(*shape)
    return open_shard(data, inputs, num_examples=num_examples, target=SingleLabel(3))


def shard_file(header: dict[str, object] | bytes, body: bytes) -> bytes:
    """A header without spaces but those that fill up 8 bytes, and the values."""
    compact = (",", ":")
    text = header if isinstance(header, bytes) else json.dumps(header, separators=compact).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


LABELS = struct.pack("<qq", 2, 0)
PIXELS = bytes([5, 6, 1, 2])
GOOD: dict[str, object] = {
    "labels": entry("I64", [2], 0, 16),
    "images": entry("U8", [2, 1, 1, 2], 16, 20),
}


def test_pixels_have_the_documented_bytes() -> None:
    images_NCHW = np.array([[[[1, 2]]], [[[3, 4]]], [[[5, 6]]]], np.uint8)
    tiny = load(ArrayRows("made", ("a", "b", "c"), torch.arange(3), images_NCHW))
    assert pack_shard(tiny, torch.tensor([2, 0])) == shard_file(GOOD, LABELS + PIXELS)


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
    ids = torch.tensor([3, 1, 4])
    for budget in (2**30, 0):
        source = f"imagefolder:{image_folder}"
        data = open_dataset(source, image_size=7, memory_budget_bytes=budget)
        shard = unpack(pack_shard(data, ids), (3, 7, 7), num_examples=3)
        examples = shard.examples
        pixels = examples.all() if isinstance(examples, EncodedImages) else examples
        assert torch.equal(images_in(pixels), data.images(ids))
        assert shard.targets_N.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (
            GOOD | {"images": entry("U8", [2, 1, 2, 1], 16, 20)},
            r"'images' is uint8\[2, 1, 2, 1\] instead of uint8\[2, 1, 1, 2\]",
        ),
        (GOOD | {"images": entry("U8", [2**40, 2**40, 1, 1], 16, 20)}, "which no tensor can be"),
        (GOOD | {"extra": entry("U8", [0], 20, 20)}, r"'extra' is uint8\[0\] instead of missing"),
        ({"images": entry("U8", [20], 0, 20)}, r"'images' is uint8\[20\] instead of"),
        (GOOD | {"__metadata__": {"a": "b"}}, "has metadata"),
        (b"{" * 4000, "not JSON"),
        (b"{" + b" " * 4999, "header of 5000 bytes; at most 4096 are read"),
    ],
)
def test_refuses_a_hostile_header(header: dict[str, object] | bytes, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence) as caught:
        unpack(shard_file(header, LABELS + PIXELS))
    assert "Fetch the shard again" in str(caught.value)
    assert "weights" not in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "num_examples", "words"),
    [
        (image_format(2, 1, 2), 2, "cannot be used: at least 1 is needed, and images of 1 or 3"),
        (image_format(1, 0, 2), 2, "cannot be used"),
        (image_format(3, 5000, 1), 2, "cannot be used"),
        (image_format(1, 1, 2), 0, "cannot be used"),
        (image_format(3, 4096, 4096), 10**6, "1000000 examples of 3x4096x4096 .* cannot be used"),
        (ColumnsFormat((ColumnFormat(TOKENS),)), 0, "0 examples of .* cannot be used"),
        (
            ColumnsFormat((ColumnFormat(replace(TOKENS, shape=(2**20, 2**13))),)),
            1,
            "1 examples of tokens int16.* cannot be used",
        ),
    ],
)
def test_refuses_impossible_expectations_before_anything_is_read(
    inputs: ImageFormat | ColumnsFormat, num_examples: int, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        open_shard(b"", inputs, num_examples=num_examples, target=SingleLabel(3))


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


@pytest.mark.parametrize(
    ("offsets", "sentence"),
    [
        ([0, 5, 5, 10], "offsets do not rise from 0 to 10"),
        ([1, 3, 7, 10], "offsets do not rise from 0 to 10"),
        ([0, 3, 10], r"'offsets' is int64\[3\] instead of int64\[4\]"),
        ([0, 3, 7, 2**62], "offsets do not rise from 0 to 10"),
    ],
)
def test_invalid_offsets_of_files_are_refused(offsets: list[int], sentence: str) -> None:
    data = encoded_file([b"abc", b"defg", b"hij"], offsets)
    with pytest.raises(DataError, match=sentence):
        unpack(data, (3, 12, 10), num_examples=3)


def test_files_of_a_shard_are_decoded_on_demand(encode: Encode) -> None:
    data = encoded_file([encode(1), encode(2)[:-40], encode(3)])
    shard = unpack(data, (3, 64, 64), num_examples=3)
    assert isinstance(shard.examples, EncodedImages)
    assert shard.targets_N.tolist() == [0, 1, 2]
    assert shard.examples.rows(torch.tensor([2, 0])).shape == (2, 3, 64, 64)
    with pytest.raises(DataError, match="image 1 of the shard cannot be used"):
        shard.examples.all()


@pytest.mark.parametrize(("more", "kind"), [(0, EncodedImages), (1, Tensor)])
def test_files_larger_than_their_pixels_are_decoded_at_once(
    encode: Encode, more: int, kind: type
) -> None:
    # What comes after an image's end is not looked at.
    file = encode(1)
    size = 24 * 20 * 3
    assert len(file) < size
    data = encoded_file([file + bytes(size - len(file) + more)])
    assert isinstance(unpack(data, (3, 24, 20), num_examples=1).examples, kind)


COLUMNS = ColumnsFormat((ColumnFormat(TOKENS), ColumnFormat(SIZES, (0.0,), (1.0,))))
WHOLE = {
    "labels": torch.tensor([2, 0]),
    "column.tokens": torch.tensor([[5, 0], [1, 2]], dtype=torch.int16),
    "column.sizes": torch.tensor([6.0, 1.0]),
}


def unpack_columns(data: bytes, inputs: ColumnsFormat = COLUMNS) -> Shard:
    return open_shard(data, inputs, num_examples=2, target=SingleLabel(3))


def test_columns_have_the_documented_bytes() -> None:
    # By falling size of a value: int64 labels, float32 sizes, int16 tokens.
    header: dict[str, object] = {
        "labels": entry("I64", [2], 0, 16),
        "column.sizes": entry("F32", [2], 16, 24),
        "column.tokens": entry("I16", [2, 2], 24, 32),
    }
    body = struct.pack("<qqffhhhh", 2, 0, 6.0, 1.0, 5, 0, 1, 2)
    packed = pack_shard(load(column_rows()), torch.tensor([2, 0]))
    assert packed == shard_file(header, body)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"column.tokens": None}, "'column.tokens' is missing instead of"),
        ({"column.more": torch.zeros(2)}, "'column.more' is .* instead of missing"),
        ({"column.tokens": torch.zeros(2, 2)}, r"'column.tokens' is float32\[2, 2\] instead of"),
        ({"column.tokens": torch.zeros(2, 3, dtype=torch.int16)}, r"int16\[2, 3\] instead of"),
        ({"column.sizes": torch.tensor([1.0, torch.inf])}, "'column.sizes' has values that are"),
        ({"column.tokens": torch.full((2, 2), -1, dtype=torch.int16)}, r"-1 to -1, outside"),
        ({"labels": torch.tensor([3, 0])}, r"'labels' has values from 0 to 3, outside 0\.\.2"),
        ({"labels": torch.tensor([-1, 2**62])}, rf"from -1 to {2**62}, outside 0\.\.2"),
    ],
)
def test_another_task_s_shard_is_refused(changed: dict[str, Tensor | None], sentence: str) -> None:
    tensors = {name: values for name, values in (WHOLE | changed).items() if values is not None}
    with pytest.raises(DataError, match=sentence):
        unpack_columns(pack(tensors))


def test_boolean_values_must_be_0_or_1() -> None:
    flags = ColumnsFormat((ColumnFormat(Column("", ColumnType.BOOL, (1,))),))
    good = pack({"column.": torch.tensor([[True], [False]]), "labels": torch.tensor([0, 1])})
    shard = unpack_columns(good, flags)
    assert isinstance(shard.examples, dict)
    assert shard.examples[""].tolist() == [[True], [False]]
    assert good.endswith(b"\1\0")
    with pytest.raises(DataError, match="neither 0 nor 1"):
        unpack_columns(good[:-2] + b"\2\0", flags)


def test_each_image_is_decoded_once_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    def watched(file: bytes, shape: tuple[int, int, int]) -> Tensor:
        decoded.append(file)
        return decode_image(file, shape)

    monkeypatch.setattr(shard, "decode_image", watched)
    files = files_of(made_up(4))
    found = encoded(files)
    assert decoded == []
    found.rows(torch.tensor([2, 1]))
    found.rows(torch.tensor([1, 3, 2]))
    assert decoded == [files[2], files[1], files[3]]
    found.all()
    found.all()
    assert decoded == [files[2], files[1], files[3], files[0]]


def test_encoded_files_are_released_after_the_last_image() -> None:
    files = files_of(made_up(2))
    offsets = list(itertools.accumulate(map(len, files), initial=0))
    content = np.frombuffer(b"".join(files), np.uint8)
    alive = weakref.ref(content)
    found = EncodedImages(content, offsets, FORMAT)
    del content
    found.rows(torch.tensor([0]))
    gc.collect()
    assert alive() is not None
    found.rows(torch.tensor([1]))
    gc.collect()
    assert alive() is None


VECTORS = torch.arange(12.0).reshape(6, 2)
NUMBERS = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


def with_targets(targets: Sequence[object]) -> Dataset:
    return load(rows_of_data("mine:data", list(zip(VECTORS, targets, strict=True))))


def test_the_fingerprint_depends_on_every_target() -> None:
    changed = [*NUMBERS[:5], 61.0]
    first, again, other = map(with_targets, (list(NUMBERS), list(NUMBERS), list(changed)))
    # The quantiles are the same.
    assert torch.equal(first.labels_N, other.labels_N)
    assert first.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("targets", "dtype"),
    [
        (list(NUMBERS), torch.float64),
        ([[0, 1], [1, 1], [0, 0], [1, 0], [0, 1], [1, 1]], torch.uint8),
    ],
)
def test_a_shard_of_targets_has_no_labels(targets: list[object], dtype: torch.dtype) -> None:
    data = with_targets(targets)
    inputs, ids = input_format(data, torch.arange(6), 0), torch.tensor([4, 1])
    shard = open_shard(pack_shard(data, ids), inputs, num_examples=2, target=data.target)
    assert shard.targets_N.dtype == dtype
    assert torch.equal(shard.targets_N, data.targets_N[ids])
    for other in (SingleLabel(6), MultiLabel(5)):
        with pytest.raises(DataError, match="the shard"):
            open_shard(pack_shard(data, ids), inputs, num_examples=2, target=other)
    if dtype == torch.uint8:
        damaged = pack_shard(data, ids)[:-2] + b"\7\1"
        with pytest.raises(DataError, match="'targets' has values from 0 to 7, outside"):
            open_shard(damaged, inputs, num_examples=2, target=data.target)


@pytest.mark.parametrize(
    ("labels", "target"),
    [
        (np.array(NUMBERS), Regression((35.0,), (np.std(NUMBERS).item(),))),
        (np.array([[0, 1], [1, 1]] * 3), MultiLabel(2)),
        # One label in every row is its class.
        (np.array([[0, 1, 0], [1, 0, 0]] * 3), SingleLabel(3)),
        (np.array([[0.0, 1.0], [1.0, 0.0]] * 3), SingleLabel(2)),
        (np.array([0, 1] * 3), SingleLabel(2)),
    ],
)
def test_multi_labels_of_a_feature_file(tmp_path: Path, labels: np.ndarray, target: object) -> None:
    write = {"X": VECTORS, "y": torch.from_numpy(labels)}
    (tmp_path / "f").write_bytes(pack(write))
    assert open_dataset(f"features:{tmp_path / 'f'}").target == target


TEXTS = ColumnsFormat((ColumnFormat(Column("", ColumnType.INT64, (2,), num_values=9)),))


def text_shard(*wanted: list[int]) -> Shard:
    wanted_NL = torch.tensor(wanted)
    tensors = {"column.": torch.ones_like(wanted_NL), "targets": wanted_NL}
    return open_shard(
        pack(tensors), TEXTS, num_examples=len(wanted), target=NextTokens(num_tokens=9, length=2)
    )


def test_next_tokens_and_masked_positions_come_back() -> None:
    assert text_shard([-1, 8], [0, 2]).targets_N.tolist() == [[-1, 8], [0, 2]]


@pytest.mark.parametrize("row", [[-1, -1], [-2, 3], [0, 9]])
def test_texts_without_a_token_or_with_unknown_ones_are_refused(row: list[int]) -> None:
    with pytest.raises(DataError, match=r"targets are not tokens in -1\.\.8 with one in each text"):
        text_shard([0, 1], row)
