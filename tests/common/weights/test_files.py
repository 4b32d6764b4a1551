from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from lipt.common.errors import BlobTooLargeError, WeightsError
from lipt.common.weights.files import pack, read_weights
from lipt.common.weights.specs import specs_of

WEIGHTS = {
    "conv.weight": torch.arange(24.0).reshape(2, 3, 4),
    "bn.num_batches_tracked": torch.tensor(7),
    "fc.bias": torch.tensor([1.0, -0.0], dtype=torch.bfloat16),
}
LIKE = specs_of(WEIGHTS)


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
        read_weights(pack(found), like=LIKE, max_bytes=10_000)
    assert str(caught.value) == (
        "the weights differ from the model's in 5 tensors: "
        "'conv.weight' is float32[2, 3, 5], the model has float32[2, 3, 4]; "
        "'bn.num_batches_tracked' is missing, the model has int64[]; "
        "'fc.bias' is float32[2], the model has bfloat16[2]; and 2 more. "
        "Give weights of this model, or name the model that they belong to."
    )


def test_refuses_a_file_over_the_limit() -> None:
    data = pack(WEIGHTS)
    with pytest.raises(BlobTooLargeError, match=f"has {len(data)} bytes; at most 100 are read"):
        read_weights(data, like=LIKE, max_bytes=100)
