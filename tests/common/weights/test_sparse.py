from __future__ import annotations

import json
import struct

import pytest
import safetensors.torch
import torch

from lipt.common.errors import WeightsError
from lipt.common.weights.codec import METADATA_KEY, encode_sparse
from lipt.common.weights.encodings import open_weights
from lipt.common.weights.files import pack
from lipt.common.weights.specs import TensorSpec


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


def test_equal_weights_give_equal_bytes_in_any_order_and_layout() -> None:
    first, second = torch.randn(3, 4).tril(), torch.zeros(5)
    expected = encode_sparse({"a": first, "b": second})
    assert encode_sparse({"b": second, "a": first.T.contiguous().T}) == expected


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
        "mask or the values of .w. are missing",
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
    "dense file": (pack({"w": torch.ones(9)}), "is not sparse weights"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_contradictions(case: str) -> None:
    content, message = REFUSED[case]
    with pytest.raises(WeightsError, match=message):
        dict(open_weights(content, like=LIKE))
