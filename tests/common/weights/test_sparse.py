from __future__ import annotations

import json
import struct
from pathlib import Path

import hypothesis.strategies as st
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings

from lipt.common.errors import BlobTooLargeError, WeightsError
from lipt.common.weights.container import pack
from lipt.common.weights.encodings import decode_weights
from lipt.common.weights.files import serialize_weights
from lipt.common.weights.sparse import METADATA_KEY, encode_sparse
from lipt.common.weights.specs import TensorSpec, Weights, specs_of

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(BITS[tensor.itemsize]).tolist()


def sparse_file(stored: dict[str, torch.Tensor], shapes: object, *, version: object = 1) -> bytes:
    return pack(stored, {METADATA_KEY: json.dumps({"version": version, "shapes": shapes})})


def masked(mask: list[int], values: list[float]) -> dict[str, torch.Tensor]:
    return {
        "mask/w": torch.tensor(mask, dtype=torch.uint8),
        "values/w": torch.tensor(values),
    }


# Nine values: two mask bytes, the second with seven padding bits.
LIKE = {"w": TensorSpec((9,), torch.float32)}


def test_bytes_of_a_tiny_example_are_those_of_the_specification() -> None:
    weights = {"w": torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, -0.0]]), "b": torch.tensor([3])}
    # Kept are 1, 2 and -0.0 at places 1, 3 and 5: bits 00101010, 0x2a.
    header = (
        b'{"__metadata__":{"lipt.sparse":"{\\"version\\":1,\\"shapes\\":{\\"w\\":[2,3]}}"},'
        b'"dense/b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},'
        b'"values/w":{"dtype":"F32","shape":[3],"data_offsets":[8,20]},'
        b'"mask/w":{"dtype":"U8","shape":[1],"data_offsets":[20,21]}}'
    )
    header += b" " * (-len(header) % 8)
    values = struct.pack("<q3fB", 3, 1.0, 2.0, -0.0, 0x2A)
    assert encode_sparse(weights) == struct.pack("<Q", len(header)) + header + values


@pytest.mark.parametrize(
    ("num_zeros", "form"),
    # 64 values in 256 bytes, the mask takes 8: two zeros only pay for it, a third gains.
    [(0, "dense"), (2, "dense"), (3, "mask"), (64, "mask")],
)
def test_masks_exactly_the_tensors_that_get_smaller(num_zeros: int, form: str) -> None:
    tensor = torch.ones(64)
    tensor[:num_zeros] = 0.0
    stored = safetensors.torch.load(encode_sparse({"w": tensor}))
    assert sorted(stored) == (["dense/w"] if form == "dense" else ["mask/w", "values/w"])


def test_integers_are_dense_however_many_zeros_they_have() -> None:
    stored = safetensors.torch.load(encode_sparse({"n": torch.zeros(64, dtype=torch.int64)}))
    assert list(stored) == ["dense/n"]


def test_equal_weights_give_equal_bytes_in_any_order_and_layout() -> None:
    first, second = torch.randn(3, 4).tril(), torch.zeros(5)
    expected = encode_sparse({"a": first, "b": second})
    assert encode_sparse({"b": second, "a": first.T.contiguous().T}) == expected


def test_negative_zero_nan_payloads_and_subnormals_survive() -> None:
    bits = torch.tensor([0, -(2**31), 0x7FC00001, 1, 0, 0, 0, 0], dtype=torch.int32)
    weights = {"w": bits.view(torch.float32)}
    decoded = decode_weights(encode_sparse(weights), like=specs_of(weights))
    assert bits_of(decoded["w"]) == bits.tolist()


def test_decodes_from_a_path_in_the_order_of_the_model(tmp_path: Path) -> None:
    weights = {"w": torch.eye(8), "b": torch.arange(3)}
    path = tmp_path / "weights"
    path.write_bytes(encode_sparse(weights))
    decoded = decode_weights(path, like=specs_of(weights))
    path.unlink()
    decoded["w"].add_(1.0)  # independent of the file
    assert list(decoded) == ["w", "b"]
    assert torch.equal(decoded["w"], torch.eye(8) + 1.0)
    assert torch.equal(decoded["b"], torch.arange(3))


DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.bool,
    torch.uint8,
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 7), max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = torch.randn(shape, generator=generator) * 3
    density = draw(st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0)))
    values = values * (torch.rand(shape, generator=generator) < density)
    tensor = values.abs().to(draw(st.sampled_from(DTYPES)))
    if draw(st.booleans()) and tensor.dim() > 1:
        tensor = tensor.transpose(0, -1)
    if draw(st.booleans()) and tensor.dim():
        tensor = tensor[..., ::2]
    return tensor


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=5), tensors(), max_size=4))
def test_decoding_gives_back_the_very_bits(weights: Weights) -> None:
    data = encode_sparse(weights)
    decoded = decode_weights(data, like=specs_of(weights))
    assert specs_of(decoded) == specs_of(weights)
    for name, tensor in weights.items():
        assert bits_of(decoded[name]) == bits_of(tensor)
    num_dense_bytes = sum(spec.num_bytes for spec in specs_of(weights).values())
    values = safetensors.torch.load(data).values()
    assert sum(value.nbytes for value in values) <= num_dense_bytes


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_files_are_refused_or_decode_to_the_right_shapes(data: st.DataObject) -> None:
    weights = {"w": torch.eye(5), "b": torch.arange(3)}
    content = bytearray(encode_sparse(weights))
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(content) - 1))
        content[index] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) - 4, len(content))) :]
    try:
        decoded = decode_weights(bytes(content), like=specs_of(weights))
    except (WeightsError, BlobTooLargeError):
        return
    assert specs_of(decoded) == specs_of(weights)


REFUSED = {
    "mask is not 1 byte": (
        sparse_file(masked([1], [5.0]), {"w": [9]}),
        r"mask of 'w' is uint8\[1\], float32\[9\] needs uint8\[2\]",
    ),
    "padding": (sparse_file(masked([1, 2], [5.0]), {"w": [9]}), "sets bits after its end"),
    "popcount": (sparse_file(masked([3, 0], [5.0]), {"w": [9]}), "keeps 2 values, 1 follow"),
    "other shape": (
        sparse_file(masked([1, 0], [5.0]), {"w": [3, 3]}),
        r"'w' is float32\[3, 3\], the model has float32\[9\]",
    ),
    "other dtype": (
        sparse_file({**masked([1, 0], []), "values/w": torch.ones(1).half()}, {"w": [9]}),
        r"'w' is float16\[9\], the model has float32\[9\]",
    ),
    "masked integers": (
        sparse_file({**masked([1, 0], []), "values/w": torch.ones(1).long()}, {"w": [9]}),
        r"not 1-D floating point",
    ),
    "values in two dimensions": (
        sparse_file({**masked([1, 0], []), "values/w": torch.ones(1, 1)}, {"w": [9]}),
        r"not 1-D floating point",
    ),
    "values without a mask": (
        sparse_file({"values/w": torch.ones(9)}, {"w": [9]}),
        "mask or values miss",
    ),
    "mask without a shape": (sparse_file(masked([1, 0], [5.0]), {}), "neither dense nor"),
    "dense and masked": (
        sparse_file({**masked([1, 0], [5.0]), "dense/w": torch.ones(9)}, {"w": [9]}),
        "neither dense nor",
    ),
    "unknown name": (
        sparse_file({"dense/w": torch.ones(9), "dense/x": torch.ones(1)}, {}),
        r"'x' is float32\[1\], the model has no such tensor",
    ),
    "unknown form": (
        sparse_file({"dense/w": torch.ones(9), "x": torch.ones(1)}, {}),
        "'x' is neither dense nor",
    ),
    "missing name": (sparse_file({}, {}), r"'w' is missing, the model has float32\[9\]"),
    "2**60 elements": (
        sparse_file(masked([1, 0], [5.0]), {"w": [2**60]}),
        r"float32\[1152921504606846976\] needs uint8\[144115188075855872\]",
    ),
    "negative shape": (sparse_file(masked([1, 0], [5.0]), {"w": [-9]}), "impossible shape"),
    "shapes are not a map": (sparse_file({}, [1]), "not version and shapes"),
    "version": (sparse_file({}, {}, version=2), "version 2, this program reads version 1"),
    "dense file": (serialize_weights({"w": torch.ones(9)}), "is not sparse weights"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_contradictions(case: str) -> None:
    content, message = REFUSED[case]
    with pytest.raises(WeightsError, match=message):
        decode_weights(content, like=LIKE)


def test_refuses_a_file_larger_than_any_of_the_model_before_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BlobTooLargeError, match="1099511627776 bytes; at most"):
        decode_weights(path, like=LIKE)


def test_a_sparse_file_is_a_safetensors_file() -> None:
    stored = safetensors.torch.load(encode_sparse({"w": torch.tensor([0.0] * 8 + [7.0])}))
    assert stored["mask/w"].tolist() == [0, 1]
    assert stored["values/w"].tolist() == [7.0]
