import pickle
from pathlib import Path

import pytest
import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor

from lipt.common.data import open_dataset
from lipt.common.errors import FeaturesError
from lipt.common.weights.files import pack
from lipt.core.signals import stored
from lipt.core.signals.stored import (
    StorageLimits,
    UserFeatures,
    features_of_pairs,
    read_user_features,
)


def read(path: Path, num_examples: int = 6) -> UserFeatures:
    return read_user_features(path, num_examples=num_examples, max_bytes=100_000)


def write(path: Path, **tensors: Tensor) -> Path:
    safetensors.torch.save_file(tensors, path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "features.safetensors"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_any_floating_point_type_becomes_float32(path: Path, dtype: torch.dtype) -> None:
    given = torch.arange(12.0).reshape(6, 2).to(dtype)
    found = read(write(path, features=given))
    assert found.paired_features_NP is None
    assert found.features_ND.dtype == torch.float32
    assert torch.equal(found.features_ND, torch.arange(12.0).reshape(6, 2))


def test_large_ones_are_kept_in_half_precision(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, features=torch.full((6, 2), 0.5))
    for feature_bytes, dtype in ((48, torch.float32), (47, torch.float16)):
        monkeypatch.setattr(stored, "STORAGE_LIMITS", StorageLimits(feature_bytes=feature_bytes))
        assert read(path).features_ND.dtype == dtype
    write(path, features=torch.tensor([[1.0] * 3, [70_000.0] * 3, *[[1.0] * 3] * 4]))
    with pytest.raises(FeaturesError, match=r"not finite in float16, .* ids 1\. .*6\.55e\+04"):
        read(path)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"features": torch.zeros(5, 2)}, r"shape \[5, 2\]; .* 6 examples need \[6, d\]"),
        ({"features": torch.zeros(6)}, r"shape \[6\]; .* need \[6, d\]"),
        ({"features": torch.zeros(6, 0)}, r"shape \[6, 0\]; .* d >= 1"),
        ({"features": torch.zeros(6, 1, 1)}, r"shape \[6, 1, 1\]"),
        ({"features": torch.zeros(6, 2, dtype=torch.int64)}, r"is int64\[6, 2\]. Convert"),
        ({"embeddings": torch.zeros(6, 2)}, r"holds 'embeddings'\. Write .*'features': N x d"),
        ({"paired_features": torch.zeros(6, 2)}, r"holds 'paired_features'"),
        (
            {"features": torch.zeros(6, 2), "labels": torch.zeros(6, 2)},
            r"holds '(features|labels)', '(features|labels)'\. Write",
        ),
        (
            {"features": torch.zeros(6, 2), "paired_features": torch.zeros(7, 2)},
            r"'paired_features' has the shape \[7, 2\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_both_shapes(
    path: Path, tensors: dict[str, Tensor], words: str
) -> None:
    with pytest.raises(FeaturesError, match=words):
        read(write(path, **tensors))


def test_values_that_are_not_finite_name_their_ids(path: Path) -> None:
    features = torch.zeros(8, 2)
    features[[1, 4], 1] = torch.tensor([float("nan"), float("inf")])
    with pytest.raises(FeaturesError, match=r"for 2 of 8 examples, with ids 1, 4\. Give finite"):
        read(write(path, features=features), num_examples=8)
    with pytest.raises(FeaturesError, match=r"for 8 of 8 .* ids 0, 1, 2, 3, 4 and 3 more\. Give"):
        read(write(path, features=torch.full((8, 1), 1e300, dtype=torch.float64)), num_examples=8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"features": [1.0]}), "is a pickle, which is never opened here"),
        (b"\x93NUMPY\x01\x00" + bytes(100), "numpy file, not safetensors. Write"),
        (b"", "is not a safetensors file"),
        (b"\xff" * 100, "is not a safetensors file"),
        (bytes(200_000), "200000 bytes; at most 100000"),
    ],
)
def test_other_files_are_refused_unopened(path: Path, content: bytes, words: str) -> None:
    path.write_bytes(content)
    with pytest.raises(FeaturesError, match=words) as refusal:
        read(path)
    assert "model" not in refusal.value.message
    assert "'features': N x d" in refusal.value.message


def test_pairs_of_a_feature_file_are_both_of_its_halves(tmp_path: Path) -> None:
    examples = {"X": torch.ones(3, 2, 2), "y": torch.tensor([0, 1, 0])}
    (tmp_path / "alone").write_bytes(pack(examples))
    (tmp_path / "pairs").write_bytes(pack(examples | {"paired_features": torch.zeros(3, 5)}))
    assert features_of_pairs(open_dataset(f"features:{tmp_path / 'alone'}")) is None
    pairs = features_of_pairs(open_dataset(f"features:{tmp_path / 'pairs'}"))
    assert pairs is not None
    assert pairs.features_ND.shape == (3, 4)
    assert pairs.paired_features_NP is not None
    assert pairs.paired_features_NP.shape == (3, 5)
