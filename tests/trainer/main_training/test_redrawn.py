from __future__ import annotations

import numpy as np
import pytest
import torch

from lipt.common.data import Dataset
from lipt.common.errors import BudgetError
from lipt.trainer.main_training import fit
from lipt.trainer.main_training.records import EpochRecord
from lipt.trainer.main_training.redrawn import RedrawnRandom, mixed_order
from tests.trainer.main_training.conftest import RECIPE, net


def test_a_pass_has_no_example_twice(digits: Dataset) -> None:
    source = RedrawnRandom(digits, 144, seed=0)
    parts = [source.before_epoch(epoch).indices for epoch in range(10)]  # 10 x 144 of 1,442
    drawn = np.concatenate(parts)
    assert len(np.unique(drawn)) == len(drawn) == 1440


def test_the_next_pass_has_another_order(digits: Dataset) -> None:
    source = RedrawnRandom(digits, 144, seed=0)
    assert source.before_epoch(0) != source.before_epoch(10)


def test_seed_and_epoch_decide_and_nothing_else(digits: Dataset) -> None:
    one, other = RedrawnRandom(digits, 100, seed=3), RedrawnRandom(digits, 100, seed=3)
    for epoch in (7, 2, 30):
        other.before_epoch(epoch)
    assert one.before_epoch(5) == other.before_epoch(5) == other.subset
    assert RedrawnRandom(digits, 100, seed=4).before_epoch(5) != one.subset


def test_every_part_has_about_each_classes_share() -> None:
    labels_N = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    order_N = mixed_order(labels_N, seed=0, which_pass=0)
    assert sorted(order_N.tolist()) == list(range(100))
    for part_K in order_N.split(20):  # of which 12, 6 and 2 are their shares
        counts = torch.bincount(labels_N[part_K], minlength=3) - torch.tensor([12, 6, 2])
        assert counts.abs().max() <= 2


@pytest.mark.parametrize("budget", [0, 1443])
def test_a_budget_that_cannot_be_drawn_is_refused(digits: Dataset, budget: int) -> None:
    with pytest.raises(BudgetError, match=rf"budget {budget} is outside 1\.\.1442"):
        RedrawnRandom(digits, budget, seed=0)


def test_main_training_takes_another_part_every_epoch(digits: Dataset) -> None:
    records: list[EpochRecord] = []
    source = RedrawnRandom(digits, 48, seed=0)
    fit(net(), digits, recipe=RECIPE, reselect=source, on_epoch=[records.append])
    assert [record.num_examples for record in records] == [48] * 4
    assert len({record.subset_digest for record in records}) == 4
