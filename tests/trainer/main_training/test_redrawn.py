"""Main training on examples that are drawn anew for every epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lipt.common.data import Dataset
from lipt.common.errors import BudgetError, ConfigError
from lipt.trainer.main_training import fit
from lipt.trainer.main_training.records import EpochRecord
from lipt.trainer.main_training.redrawn import RedrawnRandom
from tests.trainer.main_training.conftest import EVERY_EPOCH, RECIPE, StoppedError, equal, net


def test_random_examples_are_all_seen_once_before_one_is_seen_again(digits: Dataset) -> None:
    # 1,442 digits are ten epochs of 144 and two examples more.
    source = RedrawnRandom(digits, 144, seed=0)
    seen = torch.cat([torch.tensor(source.before_epoch(epoch).indices) for epoch in range(10)])
    assert len(seen.unique()) == 1440
    counts = digits.labels_N[torch.tensor(source.before_epoch(3).indices)].bincount()
    assert counts.min() >= 13
    assert counts.max() <= 16


def test_training_takes_the_steps_of_a_fixed_subset(digits: Dataset) -> None:
    records: list[EpochRecord] = []
    recipe = RECIPE.model_copy(update={"steps": None, "epochs": 4})
    source = RedrawnRandom(digits, 40, seed=0)
    trained = fit(net(), digits, recipe=recipe, reselect=source, on_epoch=[records.append])
    assert trained.num_steps == 12  # batches of 16, 16 and 8
    assert [record.num_examples for record in records] == [40] * 4
    digests = [RedrawnRandom(digits, 40, seed=0).before_epoch(epoch).digest for epoch in range(4)]
    assert [record.subset_digest for record in records] == digests
    assert len(set(digests)) == 4


@pytest.mark.parametrize("killed_after", [1, 3])
def test_training_that_was_killed_goes_on_to_the_same_weights(
    digits: Dataset, tmp_path: Path, killed_after: int
) -> None:
    undisturbed = fit(net(), digits, recipe=RECIPE, reselect=RedrawnRandom(digits, 40, seed=7))
    path = tmp_path / "checkpoint.safetensors"

    def stop(record: EpochRecord) -> None:
        if record.epoch == killed_after + 1:
            raise StoppedError

    with pytest.raises(StoppedError):
        fit(
            net(),
            digits,
            recipe=RECIPE,
            reselect=RedrawnRandom(digits, 40, seed=7),
            checkpoint=path,
            schedule=EVERY_EPOCH,
            on_epoch=[stop],
        )
    source = RedrawnRandom(digits, 40, seed=7)
    resumed = fit(net(seed=5), digits, recipe=RECIPE, reselect=source, checkpoint=path)
    assert equal(undisturbed, resumed)


def test_a_checkpoint_of_another_draw_is_refused(digits: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    fit(net(), digits, recipe=RECIPE, reselect=RedrawnRandom(digits, 40, 0), checkpoint=path)
    with pytest.raises(ConfigError, match=r"its selection\.seed is 0, now it is 1"):
        fit(net(), digits, recipe=RECIPE, reselect=RedrawnRandom(digits, 40, 1), checkpoint=path)


def test_a_budget_that_cannot_be_drawn_is_refused(digits: Dataset) -> None:
    with pytest.raises(BudgetError, match=r"budget 1443 is outside 1\.\.1442"):
        RedrawnRandom(digits, 1443, seed=0)
