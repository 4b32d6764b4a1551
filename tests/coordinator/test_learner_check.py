from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from lipt.common.errors import LearnerRejectedError
from lipt.common.weights.sparse import encode_sparse
from lipt.common.weights.specs import specs_of
from lipt.coordinator.learner_check import check_learner

WEIGHTS = {"w": torch.tensor([[1.0, 0.0], [0.0, 2.0]]), "steps": torch.tensor(3)}


def check(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    check_learner(path, specs_of(WEIGHTS))


def test_learner_of_the_model_passes(tmp_path: Path) -> None:
    check(tmp_path / "learner", encode_sparse(WEIGHTS))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_rejected_by_name(tmp_path: Path, value: float) -> None:
    bad = {**WEIGHTS, "w": torch.tensor([[1.0, value], [0.0, 2.0]])}
    with pytest.raises(LearnerRejectedError, match="'w'"):
        check(tmp_path / "learner", encode_sparse(bad))


@pytest.mark.parametrize(
    "bad",
    [
        {"w": WEIGHTS["w"]},
        {**WEIGHTS, "extra": torch.zeros(1)},
        {**WEIGHTS, "w": torch.zeros(2, 3)},
        {**WEIGHTS, "w": WEIGHTS["w"].double()},
    ],
    ids=["missing", "extra", "shape", "dtype"],
)
def test_other_tensors_than_the_model_s_are_rejected(
    tmp_path: Path, bad: dict[str, torch.Tensor]
) -> None:
    with pytest.raises(LearnerRejectedError, match="the model has"):
        check(tmp_path / "learner", encode_sparse(bad))


def test_pickle_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(LearnerRejectedError, match="pickle"):
        check(tmp_path / "learner", pickle.dumps(WEIGHTS))
