from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lipt.common.data import Dataset, open_dataset
from lipt.trainer.distillation import SyntheticSet, distill
from lipt.trainer.distillation.evaluation import AT_ONCE, RANDOM, STAGED, evaluate
from lipt.trainer.main_training import Recipe
from tests.trainer.distillation.conftest import small

RECIPE = Recipe(steps=3, learning_rate=0.01, augmentation="none")


def outcomes(digits: Dataset, synthetic: SyntheticSet, **given: Any) -> Any:
    test = open_dataset("digits-test")
    seeds, chosen = given.pop("seeds", (0,)), given.pop("chosen", {})
    model = given.pop("model", "linear")
    return evaluate(
        synthetic, digits, test, model, RECIPE, seeds=seeds, chosen=chosen, device="cpu"
    )


def test_all_are_trained_on_as_many_images(digits: Dataset, tmp_path: Path, subset_of: Any) -> None:
    synthetic = distill(digits, "linear", small(), tmp_path)
    chosen = {"mine": subset_of(digits, range(20))}
    found = outcomes(digits, synthetic, seeds=(0, 1), chosen=chosen)
    assert [(one.name, one.num_images) for one in found] == [
        (STAGED, 20),
        (AT_ONCE, 20),
        (RANDOM, 20),
        ("mine", 20),
    ]
    assert all(len(one.accuracies) == 2 for one in found)
    random = found[2].accuracies
    assert random[0] != random[1]


def test_real_images_called_synthetic_are_worth_what_they_are(
    digits: Dataset, subset_of: Any
) -> None:
    ids = torch.cat([torch.nonzero(digits.labels_N == label)[:2].flatten() for label in range(10)])
    ids = ids.sort().values
    copies = SyntheticSet.empty((1, 8, 8), digits.class_names)
    copies = copies.extended(digits.images(ids), digits.labels_N[ids])
    chosen = {"the same": subset_of(digits, ids.tolist())}
    found = {one.name: one.accuracies for one in outcomes(digits, copies, chosen=chosen)}
    assert found[AT_ONCE] == pytest.approx(found["the same"])
    assert found[AT_ONCE] != pytest.approx(found[RANDOM])
