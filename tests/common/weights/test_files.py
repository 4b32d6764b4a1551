from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from lipt.common.errors import BlobTooLargeError, WeightsError
from lipt.common.weights.files import read_weights, serialize_weights
from lipt.common.weights.specs import TensorSpec, specs_of

WEIGHTS = {
    "conv.weight": torch.arange(24.0).reshape(2, 3, 4),
    "bn.num_batches_tracked": torch.tensor(7),
    "fc.bias": torch.tensor([1.0, -0.0], dtype=torch.bfloat16),
}
LIKE = specs_of(WEIGHTS)


def test_reads_what_it_wrote_in_the_order_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(serialize_weights(WEIGHTS, {"run": "r1"}))
    for source in (path, path.read_bytes()):
        weights = read_weights(source, like=LIKE, max_bytes=10_000)
        assert list(weights) == list(WEIGHTS)
        assert all(torch.equal(weights[name], WEIGHTS[name]) for name in WEIGHTS)


def test_reads_what_the_library_wrote(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(WEIGHTS, path)
    weights = read_weights(path, like=LIKE, max_bytes=10_000)
    assert all(torch.equal(weights[name], WEIGHTS[name]) for name in WEIGHTS)


def test_names_the_first_three_differences_with_both_values() -> None:
    found = {
        "conv.weight": torch.zeros(2, 3, 5),
        "fc.bias": torch.zeros(2),
        "head": torch.zeros(1),
        "tail": torch.zeros(1),
    }
    with pytest.raises(WeightsError) as caught:
        read_weights(serialize_weights(found), like=LIKE, max_bytes=10_000)
    assert str(caught.value) == (
        "the weights differ from the model's in 5 tensors: "
        "'conv.weight' is float32[2, 3, 5], the model has float32[2, 3, 4]; "
        "'bn.num_batches_tracked' is missing, the model has int64[]; "
        "'fc.bias' is float32[2], the model has bfloat16[2]; and 2 more. "
        "Give weights of this model, or name the model that they belong to."
    )


def test_refuses_a_file_over_the_limit() -> None:
    data = serialize_weights(WEIGHTS)
    with pytest.raises(BlobTooLargeError, match=f"has {len(data)} bytes; at most 100 are read"):
        read_weights(data, like=LIKE, max_bytes=100)


def torch_file(*, zipped: bool) -> bytes:
    file = io.BytesIO()
    torch.save({"w": torch.ones(2)}, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def numpy_file(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (torch_file(zipped=True), "zip archive.*Convert it where you trust it: safetensors"),
        (torch_file(zipped=False), "pickle.*Convert it where you trust it: safetensors"),
        (pickle.dumps({"w": [1.0]}, protocol=2), "pickle.*Convert it"),
        (pickle.dumps({"w": [1.0]}, protocol=4), "pickle.*Convert it"),
        (pickle.dumps({"w": [1.0]}, protocol=5), "pickle.*Convert it"),
        (numpy_file(np.ones(3)), "numpy file.*safetensors.numpy.save_file"),
        (b"\x1f\x8b" + bytes(20), "gzip. Uncompress it first"),
        (b"hello, these are weights", "is not a safetensors file.*Write it with"),
    ],
)
def test_names_other_formats_and_how_to_convert_them(content: bytes, words: str) -> None:
    with pytest.raises(WeightsError, match=words):
        read_weights(content, like=LIKE, max_bytes=10_000)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"none.safetensors cannot be read: No such file"):
        read_weights(tmp_path / "none.safetensors", like=LIKE, max_bytes=10)


def test_specs_count_elements_and_bytes() -> None:
    spec = TensorSpec((2, 3), torch.float16)
    assert (spec.num_elements, spec.num_bytes) == (6, 12)
    assert TensorSpec((), torch.int64).num_elements == 1
