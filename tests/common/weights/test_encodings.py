from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
import safetensors.torch
import torch
from hypothesis import given

from lipt.common.config.run_config import WeightEncoding
from lipt.common.errors import BlobTooLargeError, WeightsError
from lipt.common.weights.encodings import encode_weights, open_weights
from lipt.common.weights.specs import Weights, specs_of

LOSSLESS = (WeightEncoding.BITMASK, WeightEncoding.PLANES)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(BITS[tensor.itemsize]).tolist()


@pytest.mark.parametrize("encoding", LOSSLESS)
def test_negative_zero_nan_payloads_and_subnormals_survive(encoding: WeightEncoding) -> None:
    bits = torch.tensor([0, -(2**31), 0x7FC00001, 1, -1, 0, 0, 0], dtype=torch.int32)
    weights = {"w": bits.view(torch.float32)}
    decoded = dict(open_weights(encode_weights(weights, encoding), like=specs_of(weights)))
    assert bits_of(decoded["w"]) == bits.tolist()


@pytest.mark.parametrize("encoding", WeightEncoding)
def test_decodes_from_a_path_in_the_order_of_the_model(
    encoding: WeightEncoding, tmp_path: Path
) -> None:
    weights = {"w": torch.eye(8), "b": torch.arange(3)}
    path = tmp_path / "weights"
    path.write_bytes(encode_weights(weights, encoding))
    decoded = dict(open_weights(path, like=specs_of(weights)))
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


@pytest.mark.parametrize("encoding", LOSSLESS)
@given(weights=st.dictionaries(st.text(min_size=1, max_size=5), tensors(), max_size=4))
def test_decoding_gives_back_the_very_bits(encoding: WeightEncoding, weights: Weights) -> None:
    content = encode_weights(weights, encoding)
    decoded = dict(open_weights(content, like=specs_of(weights)))
    assert specs_of(decoded) == specs_of(weights)
    for name, tensor in weights.items():
        assert bits_of(decoded[name]) == bits_of(tensor)
    if encoding is WeightEncoding.BITMASK:
        stored = safetensors.torch.load(content).values()
        dense = sum(spec.num_bytes for spec in specs_of(weights).values())
        assert sum(tensor.nbytes for tensor in stored) <= dense


@pytest.mark.parametrize("encoding", WeightEncoding)
@given(data=st.data())
def test_damaged_files_are_refused_or_decode_to_the_right_shapes(
    encoding: WeightEncoding, data: st.DataObject
) -> None:
    weights = {"w": torch.eye(5), "b": torch.arange(3)}
    content = bytearray(encode_weights(weights, encoding))
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(content) - 1))
        content[index] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) - 4, len(content))) :]
    try:
        decoded = dict(open_weights(bytes(content), like=specs_of(weights)))
    except (WeightsError, BlobTooLargeError):
        return
    assert specs_of(decoded) == specs_of(weights)


def test_refuses_a_file_larger_than_any_of_the_model_before_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BlobTooLargeError, match="1099511627776 bytes; at most"):
        dict(open_weights(path, like=specs_of({"w": torch.zeros(9)})))
