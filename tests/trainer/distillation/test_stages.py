from __future__ import annotations

import torch

from lipt.trainer.distillation import Stages


def test_each_stage_has_an_equal_share_of_the_epochs() -> None:
    stages = Stages(torch.tensor([0, 0, 1, 2]), "f" * 64)
    stages.num_epochs = 6
    found = [stages.before_epoch(epoch).indices.tolist() for epoch in range(6)]
    assert found == [[0, 1]] * 2 + [[0, 1, 2]] * 2 + [[0, 1, 2, 3]] * 2


def test_epochs_beyond_those_foreseen_have_all_images() -> None:
    stages = Stages(torch.tensor([0, 1]), "f" * 64)
    stages.num_epochs = 2
    assert stages.before_epoch(7).indices.tolist() == [0, 1]


def test_images_may_be_some_of_a_data_set() -> None:
    stages = Stages(torch.tensor([0, 1]), "e" * 64, torch.tensor([9, 4]))
    assert stages.subset.indices.tolist() == [9]
    assert stages.before_epoch(1).indices.tolist() == [4, 9]
    assert stages.subset.fingerprint == "e" * 64
