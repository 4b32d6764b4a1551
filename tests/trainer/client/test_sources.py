from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from lipt.common.errors import FeaturesError
from lipt.trainer.client.sources import features_source

ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
ARRAY = np.array(ROWS)


def read_only() -> Any:
    array = ARRAY.copy()
    array.flags.writeable = False
    return array


def packed(features: Any) -> dict[str, torch.Tensor]:
    content = features_source(features)
    assert isinstance(content, bytes)
    return safetensors.torch.load(content)


@pytest.mark.parametrize(
    "features",
    [ARRAY, read_only(), ARRAY.T.copy().T, torch.tensor(ROWS), ROWS, {"features": ROWS}],
    ids=["array", "read-only", "transposed", "tensor", "lists", "named"],
)
def test_features_are_packed_under_their_name(features: Any) -> None:
    sent = packed(features)
    assert list(sent) == ["features"]
    assert sent["features"].tolist() == ROWS


def test_a_large_file_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "features.safetensors"
    safetensors.torch.save_file({"features": torch.ones(3, 2)}, path)
    assert features_source(path) == features_source(str(path)) == path
    assert features_source(path.read_bytes()) == path.read_bytes()


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (b"nothing of the kind", r"not a safetensors file.*'features': N x d"),
        ({"features": [[1.0], [2.0, 3.0]]}, r"are no tensors \(.*'features': N x d"),
        ({"features": "many"}, "are no tensors"),
    ],
)
def test_invalid_features_are_refused(features: Any, words: str) -> None:
    with pytest.raises(FeaturesError, match=words):
        features_source(features)
