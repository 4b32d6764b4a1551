import json
import struct
import tracemalloc
import zlib
from pathlib import Path

import hypothesis.strategies as st
import pytest
import safetensors.torch
import torch
from hypothesis import given

from lipt.common.config.run_config import WeightEncoding
from lipt.common.errors import BlobTooLargeError, WeightsError
from lipt.common.tensor_files import TensorSpec, Weights, pack, specs_of
from lipt.models.encodings import (
    PLANES_KEY,
    SPARSE_KEY,
    encode_planes,
    encode_sparse,
    encode_weights,
    open_weights,
)

LOSSLESS = (WeightEncoding.BITMASK, WeightEncoding.PLANES)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(BITS[tensor.itemsize]).tolist()


FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# -0.0, NaN with a payload, subnormals of either sign.
SPECIAL = torch.tensor([0, -(2**31), 0x7FC00001, 1, -1, 0, 0, 0], dtype=torch.int32)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 7), max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = torch.randn(shape, generator=generator) * 3
    density = draw(st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0)))
    values = values * (torch.rand(shape, generator=generator) < density)
    tensor = values.abs().to(draw(st.sampled_from((*FLOATS, torch.int64, torch.bool, torch.uint8))))
    if draw(st.booleans()) and tensor.dim() > 1:
        tensor = tensor.transpose(0, -1)
    if draw(st.booleans()) and tensor.dim():
        tensor = tensor[..., ::2]
    return tensor


@pytest.mark.parametrize("encoding", LOSSLESS)
@given(weights=st.dictionaries(st.text(min_size=1, max_size=5), tensors(), max_size=4))
def test_decoding_restores_every_bit(encoding: WeightEncoding, weights: Weights) -> None:
    weights = weights | {"special": SPECIAL.view(torch.float32)}
    content = encode_weights(weights, encoding)
    decoded = dict(open_weights(content, like=specs_of(weights)))
    assert specs_of(decoded) == specs_of(weights)
    for name, tensor in weights.items():
        assert bits_of(decoded[name]) == bits_of(tensor)
    if encoding is WeightEncoding.BITMASK:
        stored = safetensors.torch.load(content).values()
        dense = sum(spec.num_bytes for spec in specs_of(weights).values())
        assert sum(tensor.nbytes for tensor in stored) <= dense


def test_a_file_larger_than_the_model_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BlobTooLargeError, match="1099511627776 bytes; at most"):
        dict(open_weights(path, like=specs_of({"w": torch.zeros(9)})))


def sparse_file(
    stored: dict[str, torch.Tensor], shape: object = (9,), *, version: object = 1
) -> bytes:
    shapes = shape if isinstance(shape, dict | str) else {"w": shape}
    return pack(stored, {SPARSE_KEY: json.dumps({"version": version, "shapes": shapes})})


def masked(mask: list[int], values: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"mask/w": torch.tensor(mask, dtype=torch.uint8), "values/w": values}


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
def test_only_tensors_that_get_smaller_are_masked(num_zeros: int, form: str) -> None:
    tensor = torch.ones(64)
    tensor[:num_zeros] = 0.0
    stored = safetensors.torch.load(encode_sparse({"w": tensor}))
    assert sorted(stored) == (["dense/w"] if form == "dense" else ["mask/w", "values/w"])


def test_equal_weights_give_equal_bytes_in_any_order_and_layout() -> None:
    first, second = torch.randn(3, 4).tril(), torch.zeros(5)
    expected = encode_sparse({"a": first, "b": second})
    assert encode_sparse({"b": second, "a": first.T.contiguous().T}) == expected


FIVE, DENSE = torch.tensor([5.0]), {"dense/w": torch.ones(9)}
GOOD = masked([1, 0], FIVE)
REFUSED = {
    "mask is not 1 byte": (
        sparse_file(masked([1], FIVE)),
        r"'w' is float32\[9\] .* with the mask uint8\[1\]",
    ),
    "padding": (sparse_file(masked([1, 2], FIVE)), "sets bits after its end"),
    "popcount": (sparse_file(masked([3, 0], FIVE)), "keeps 2 values, 1 follow"),
    "other shape": (sparse_file(GOOD, (3, 3)), r"'w' is float32\[3, 3\], .* has float32\[9\]"),
    "other dtype": (
        sparse_file(masked([1, 0], FIVE.half())),
        r"'w' is float16\[9\], the model has float32\[9\]",
    ),
    "masked integers": (sparse_file(masked([1, 0], FIVE.long())), r"the values int64\[1\]"),
    "two dimensions": (sparse_file(masked([1, 0], FIVE[None])), r"the values float32\[1, 1\]"),
    "no mask": (sparse_file({"values/w": FIVE}), "mask or the values of .w. are missing"),
    "mask without a shape": (sparse_file(GOOD, {}), "neither dense nor"),
    "dense and masked": (sparse_file(GOOD | DENSE), "neither dense nor"),
    "unknown name": (
        sparse_file(DENSE | {"dense/x": FIVE}, {}),
        r"'x' is float32\[1\], the model has no such tensor",
    ),
    "unknown form": (sparse_file(DENSE | {"x": FIVE}, {}), "'x' is neither dense nor"),
    "missing name": (sparse_file({}, {}), r"'w' is missing, the model has float32\[9\]"),
    "2**60 elements": (
        sparse_file(GOOD, [2**60]),
        r"float32\[1152921504606846976\] .* with the mask uint8\[2\]",
    ),
    "negative shape": (sparse_file(GOOD, [-9]), "'shapes.w.0': .* equal to 0"),
    "no map": (sparse_file({}, "w"), "'shapes': Input should be .*(dictionary|object)"),
    "version": (sparse_file({}, {}, version=2), "'version': Input should be 1"),
    "dense file": (pack({"w": torch.ones(9)}), "'lipt.sparse' in its metadata: .*"),
}


def inflated(content: bytes) -> bytes:
    return zlib.decompress(content, -15)


def deflated(content: bytes) -> torch.Tensor:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return torch.tensor(list(squeeze.compress(content) + squeeze.flush()), dtype=torch.uint8)


def test_planes_of_a_tiny_example_are_those_of_the_specification() -> None:
    # 1.0 is 0x3f800000, rotated left 0x7f000000; -2.5 is 0xc0200000, rotated 0x80400001.
    content = encode_planes({"w": torch.tensor([[0.0, 1.0], [-2.5, 0.0]]), "n": torch.tensor([3])})
    stored = safetensors.torch.load(content)
    assert sorted(stored) == ["dense/n", "mask/w", "planes/w"]
    assert stored["dense/n"].tolist() == [3]
    assert inflated(bytes(stored["mask/w"].tolist())) == bytes([0b0110])
    planes = bytes(stored["planes/w"].tolist())
    assert planes[:6] == bytes([0x00, 0x01, 0x00, 0x00, 0x00, 0x40])
    assert inflated(planes[6:]) == bytes([0x7F, 0x80])
    header = json.loads(content[8 : 8 + struct.unpack_from("<Q", content)[0]])
    assert header["__metadata__"] == {
        PLANES_KEY: '{"version":1,"tensors":{"w":{"dtype":"F32","kept":2,"shape":[2,2]}}}'
    }


def test_bfloat16_planes_round_only_float32() -> None:
    weights: Weights = {
        "single": torch.tensor([1.0 + 2**-9, 1.0 + 3 * 2**-8, 0.0, -(2.0**-130)]),
        "double": torch.tensor([1.0 + 2**-40], dtype=torch.float64),
        "count": torch.tensor(7),
    }
    content = encode_weights(weights, WeightEncoding.BFLOAT16_PLANES)
    decoded = dict(open_weights(content, like=specs_of(weights)))
    # Ties go to the even neighbour.
    assert decoded["single"].tolist() == [1.0, 1.0 + 2**-6, 0.0, -(2.0**-130)]
    assert decoded["double"].tolist() == weights["double"].tolist()
    assert decoded["count"].item() == 7


# Nine values of which one is kept: two mask bytes, and one value of four bytes.
MASK, ZERO = deflated(bytes([1, 0])), torch.zeros(3, dtype=torch.uint8)
VALUE = torch.cat([ZERO, deflated(b"\x7f")])


def file_of(
    mask: torch.Tensor = MASK,
    planes: torch.Tensor = VALUE,
    *,
    shape: object = (9,),
    dtype: object = "F32",
    kept: object = 1,
    version: object = 1,
) -> bytes:
    entry = {"dtype": dtype, "kept": kept, "shape": shape}
    text = json.dumps({"version": version, "tensors": {"w": entry}})
    return pack({"mask/w": mask, "planes/w": planes}, {PLANES_KEY: text})


ENTRY = '{"version":1,"tensors":{"w":{"dtype":"F32","kept":1,"shape":[9]}}}'
BOMB = deflated(bytes(50_000_000))
REFUSED_PLANES = {
    "mask too long": (file_of(deflated(bytes([1, 0, 0]))), "does not hold 2 bytes"),
    "mask too short": (file_of(deflated(bytes([1]))), "does not hold 2 bytes"),
    "mask is cut": (file_of(MASK[:-1]), "does not hold 2 bytes"),
    "mask is no stream": (file_of(torch.full((3,), 255, dtype=torch.uint8)), "damaged"),
    "bytes after the mask": (file_of(torch.cat([MASK, ZERO])), "does not hold 2 bytes"),
    "mask is a bomb": (file_of(BOMB), "does not hold 2 bytes"),
    "values are a bomb": (file_of(planes=torch.cat([ZERO, BOMB])), "does not hold 1 bytes"),
    "padding": (file_of(deflated(bytes([0, 2]))), "sets bits after its end"),
    "popcount": (file_of(deflated(bytes([3, 0]))), "keeps 2 values, 1 follow"),
    "values too few": (file_of(planes=ZERO[:2]), "2 bytes for 1 values"),
    "kept more than there are": (file_of(kept=10), "keeps 10 values"),
    "kept is negative": (file_of(kept=-1), "kept': .* equal to 0"),
    "kept is true": (file_of(kept=True), "kept': .* integer"),
    "dtype": (file_of(dtype="I32"), "'tensors.w.dtype': Input should be"),
    "dtype is a list": (file_of(dtype=["F32"]), "'tensors.w.dtype': Input should be"),
    "half for single": (file_of(dtype="F16"), r"float16\[9\], the model has float32"),
    "other shape": (file_of(shape=[3, 3]), r"float32\[3, 3\], the model has float32\[9\]"),
    "2**60 elements": (file_of(shape=[2**60]), r"\[1152921504606846976\], the model has"),
    "negative shape": (file_of(shape=[-9]), "shape.0': .* equal to 0"),
    "version": (file_of(version=2), "'version': Input should be 1"),
    "mask is not bytes": (file_of(MASK.float()), "with the mask float32"),
    "mask in two dimensions": (file_of(MASK[None]), r"with the mask uint8\[1, "),
    "mask misses": (
        pack({"planes/w": VALUE}, {PLANES_KEY: ENTRY}),
        "mask or the values of 'w' are missing",
    ),
}


@pytest.mark.parametrize(
    ("content", "message"),
    [*REFUSED.values(), *REFUSED_PLANES.values()],
    ids=[*REFUSED, *(f"planes: {case}" for case in REFUSED_PLANES)],
)
def test_contradictions_and_bombs_are_refused_in_little_memory(
    content: bytes, message: str
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises((WeightsError, BlobTooLargeError), match=message):
            dict(open_weights(content, like=LIKE))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
