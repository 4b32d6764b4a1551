"""Shards of examples that are no images."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from lipt.common.data import Shard, pack_shard, unpack_shard
from lipt.common.data.loading import load_columns
from lipt.common.errors import DataError
from lipt.common.inputs.specs import Column, ColumnFormat, ColumnsFormat, ColumnType
from lipt.common.targets.values import SingleLabel
from lipt.common.weights.files import pack
from tests.common.data.columns import SIZES, TOKENS, column_rows

FORMAT = ColumnsFormat((ColumnFormat(TOKENS), ColumnFormat(SIZES, (0.0,), (1.0,))))
WHOLE = {
    "labels": torch.tensor([2, 0]),
    "column.tokens": torch.tensor([[5, 0], [1, 2]], dtype=torch.int16),
    "column.sizes": torch.tensor([6.0, 1.0]),
}


def unpack(data: bytes, inputs: ColumnsFormat = FORMAT, num_examples: int = 2) -> Shard:
    return unpack_shard(data, inputs, num_examples=num_examples, target=SingleLabel(3))


def packed() -> bytes:
    return pack_shard(load_columns(column_rows(), image_size=None), torch.tensor([2, 0]))


def test_columns_have_the_documented_bytes() -> None:
    # By falling size of a value: int64 labels, float32 sizes, int16 tokens.
    header = {
        "labels": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]},
        "column.sizes": {"dtype": "F32", "shape": [2], "data_offsets": [16, 24]},
        "column.tokens": {"dtype": "I16", "shape": [2, 2], "data_offsets": [24, 32]},
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    body = struct.pack("<qqffhhhh", 2, 0, 6.0, 1.0, 5, 0, 1, 2)
    assert packed() == struct.pack("<Q", len(text)) + text + body


def test_what_was_packed_comes_back() -> None:
    shard = unpack(packed())
    assert isinstance(shard.examples, dict)
    assert list(shard.examples) == ["tokens", "sizes"]
    assert torch.equal(shard.examples["tokens"], WHOLE["column.tokens"])
    assert torch.equal(shard.examples["sizes"], WHOLE["column.sizes"])
    assert shard.targets_N.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"column.tokens": None}, "the shard holds 'column.sizes', 'labels' instead of"),
        ({"column.more": torch.zeros(2)}, "the shard holds .*'column.more'"),
        ({"images": torch.zeros(2, dtype=torch.uint8)}, "the shard holds .*'images'"),
        (
            {"column.tokens": torch.zeros(2, 2)},
            r"'column.tokens' is float32\[2, 2\] instead of int",
        ),
        ({"column.tokens": torch.zeros(2, 3, dtype=torch.int16)}, r"int16\[2, 3\] instead of"),
        ({"column.sizes": torch.zeros(3)}, r"float32\[3\] instead of float32\[2\]"),
        (
            {"column.sizes": torch.tensor([1.0, torch.inf])},
            "'column.sizes' has values that are",
        ),
        ({"column.tokens": torch.full((2, 2), 9, dtype=torch.int16)}, r"9 to 9, outside 0\.\.8"),
        ({"column.tokens": torch.full((2, 2), -1, dtype=torch.int16)}, r"-1 to -1, outside"),
        ({"labels": torch.tensor([3, 0])}, r"'labels' has values from 0 to 3, outside 0\.\.2"),
    ],
)
def test_what_is_not_the_tasks_is_refused(changed: dict[str, Tensor | None], sentence: str) -> None:
    tensors = {name: values for name, values in (WHOLE | changed).items() if values is not None}
    with pytest.raises(DataError, match=sentence):
        unpack(pack(tensors))


def test_a_flag_is_0_or_1() -> None:
    flags = ColumnsFormat((ColumnFormat(Column("", ColumnType.BOOL, (1,))),))
    good = pack({"column.": torch.tensor([[True], [False]]), "labels": torch.tensor([0, 1])})
    shard = unpack(good, flags)
    assert isinstance(shard.examples, dict)
    assert shard.examples[""].tolist() == [[True], [False]]
    assert good.endswith(b"\1\0")
    with pytest.raises(DataError, match="neither 0 nor 1"):
        unpack(good[:-2] + b"\2\0", flags)


def test_more_than_the_limit_is_refused_before_anything_is_read() -> None:
    long = replace(TOKENS, shape=(2**20, 2**13))
    with pytest.raises(DataError, match=r"1 examples of tokens int16.* over the limit"):
        unpack(b"", ColumnsFormat((ColumnFormat(long),)), num_examples=1)
    with pytest.raises(DataError, match=r"0 examples of .* cannot be used: at least 1"):
        unpack(b"", num_examples=0)


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 30))
def test_garbage_is_refused_as_no_shard(noise: bytes, place: int, cut: int) -> None:
    whole = packed()
    broken = whole[:place] + noise + whole[place + cut :]
    try:
        shard = unpack(broken)
    except DataError:
        return
    # What is left of the shard by chance is one of the task's.
    assert isinstance(shard.examples, dict)
    assert shard.examples["tokens"].shape == (2, 2)
    assert bool(shard.examples["sizes"].isfinite().all())
