from __future__ import annotations

import json
import struct
import tracemalloc
import zlib

import pytest
import safetensors.torch
import torch

from lipt.common.config.run_config import WeightEncoding
from lipt.common.errors import BlobTooLargeError, WeightsError
from lipt.common.weights.encodings import METADATA_KEY, encode_planes, encode_weights, open_weights
from lipt.common.weights.files import pack
from lipt.common.weights.specs import TensorSpec, Weights, specs_of


def inflated(content: bytes) -> bytes:
    return zlib.decompress(content, -15)


def deflated(content: bytes) -> torch.Tensor:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return torch.tensor(list(squeeze.compress(content) + squeeze.flush()), dtype=torch.uint8)


def test_parts_of_a_tiny_example_are_those_of_the_specification() -> None:
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
        METADATA_KEY: '{"version":1,"tensors":{"w":{"dtype":"F32","kept":2,"shape":[2,2]}}}'
    }


def test_bfloat16_rounds_float32_and_leaves_the_rest() -> None:
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


def test_gaussian_weights_shrink_by_a_sixth_and_to_a_third() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(200_000, generator=generator) * 0.02
    values[torch.rand(values.shape, generator=generator) < 0.1] = 0.0
    sizes = [
        len(encode_weights({"w": values}, encoding)) / values.nbytes for encoding in WeightEncoding
    ]
    bitmask, planes, bfloat16 = sizes
    assert bitmask == pytest.approx(0.9 + 1 / 32, abs=0.005)
    # 34.5 and 14.5 MB of ResNet-18's 44.7.
    assert planes <= 0.772
    assert bfloat16 <= 0.324


# Nine values of which one is kept: two mask bytes, and one value of four bytes.
LIKE = {"w": TensorSpec((9,), torch.float32)}
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
    return pack({"mask/w": mask, "planes/w": planes}, {METADATA_KEY: text})


ENTRY = '{"version":1,"tensors":{"w":{"dtype":"F32","kept":1,"shape":[9]}}}'
BOMB = deflated(bytes(50_000_000))
REFUSED = {
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
    "kept is negative": (file_of(kept=-1), "has an impossible entry"),
    "kept is true": (file_of(kept=True), "has an impossible entry"),
    "dtype": (file_of(dtype="I32"), "has an impossible entry"),
    "dtype is a list": (file_of(dtype=["F32"]), "has an impossible entry"),
    "half for single": (file_of(dtype="F16"), r"float16\[9\], the model has float32"),
    "other shape": (file_of(shape=[3, 3]), r"float32\[3, 3\], the model has float32\[9\]"),
    "2**60 elements": (file_of(shape=[2**60]), r"\[1152921504606846976\], the model has"),
    "negative shape": (file_of(shape=[-9]), "has an impossible entry"),
    "version": (file_of(version=2), "version 2, this program reads version 1"),
    "mask is not bytes": (file_of(MASK.float()), "not 1-D uint8"),
    "mask in two dimensions": (file_of(MASK[None]), "not 1-D uint8"),
    "mask misses": (
        pack({"planes/w": VALUE}, {METADATA_KEY: ENTRY}),
        "mask or the values of 'w' are missing",
    ),
    "unknown form": (
        pack({"dense/w": torch.ones(9), "x": ZERO}, {METADATA_KEY: '{"version":1,"tensors":{}}'}),
        "'x' is neither dense nor",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_contradictions_and_bombs_in_little_memory(case: str) -> None:
    content, message = REFUSED[case]
    tracemalloc.start()
    try:
        with pytest.raises((WeightsError, BlobTooLargeError), match=message):
            dict(open_weights(content, like=LIKE))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
