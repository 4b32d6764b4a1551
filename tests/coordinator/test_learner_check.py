from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from lipt.common.errors import LearnerRejectedError
from lipt.common.weights.sparse import encode_sparse
from lipt.common.weights.specs import specs_of
from lipt.coordinator.learner_check import check_learner, require_snapshots

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


@pytest.mark.parametrize(("num_sent", "num_wanted"), [(0, 0), (3, 3)])
def test_learner_with_its_snapshots_passes(num_sent: int, num_wanted: int) -> None:
    require_snapshots(num_sent, num_wanted, worker="one", version="0.1.0")


@pytest.mark.parametrize(("num_sent", "num_wanted"), [(0, 2), (1, 2), (3, 2), (1, 0)])
def test_learner_without_its_snapshots_is_rejected_with_the_workers_version(
    num_sent: int, num_wanted: int
) -> None:
    with pytest.raises(LearnerRejectedError) as raised:
        require_snapshots(num_sent, num_wanted, worker="one", version="0.1.0")
    assert f"{num_sent} snapshots, but learners.num_snapshots is {num_wanted}" in str(raised.value)
    assert "Worker one runs lipt 0.1.0: install the coordinator's version" in str(raised.value)


def test_worker_of_an_unknown_version_is_named_all_the_same() -> None:
    with pytest.raises(LearnerRejectedError, match="Worker two runs lipt of an unknown version"):
        require_snapshots(0, 2, worker="two", version="")
