"""Trainings at once: each is what plain SGD makes of the same batches."""

import copy
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from benchmarks.value.at_once import Lanes, Training, _batches
from lipt.trainer.main_training import Recipe

MEAN_C, STD_C = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.25, 0.3])


def training(seed: int, *, num_drawn: int | None = None) -> Training:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    rows_K = torch.arange(10 * seed, 10 * seed + 20)
    recipe = Recipe(
        steps=7, batch_size=6, drop_last=True, augmentation="crop", padding=0, seed=seed
    )
    return Training(model, rows_K, torch.rand(20, 5).softmax(1), MEAN_C, STD_C, recipe, num_drawn)


def test_each_is_plain_sgd_on_its_own_rows_and_targets() -> None:
    pool_PCHW = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8)
    both = [training(1), training(2)]
    lanes = Lanes(both[0], pool_PCHW, num_lanes=3)
    for one, lane in zip(both, lanes.train(both), strict=True):
        model, recipe = copy.deepcopy(one.model), one.recipe
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        batches = _batches(one, torch.Generator().manual_seed(recipe.seed), 7)
        for step, places_B in enumerate(batches):
            pixels = pool_PCHW[one.rows_K[places_B]].float() / 255
            inputs = (pixels - MEAN_C[:, None, None]) / STD_C[:, None, None]
            loss = functional.cross_entropy(model(inputs), one.targets_KC[places_B])
            sgd.param_groups[0]["lr"] = recipe.learning_rate_at(step, 7)
            sgd.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            sgd.step()
        for found, expected in zip(lane.model.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        inputs = (pool_PCHW.float() / 255 - MEAN_C[:, None, None]) / STD_C[:, None, None]
        labels_P = cast("torch.Tensor", model(inputs)).argmax(1)
        assert lanes.accuracy(lane, torch.arange(60), labels_P) >= 59 / 60


def test_an_epoch_of_some_draws_others_in_the_next() -> None:
    batches = torch.stack(list(_batches(training(1, num_drawn=6), torch.Generator(), 7)))
    assert batches.shape == (7, 6)
    assert all(len(set(batch.tolist())) == 6 for batch in batches)
    assert len(batches.unique()) > 12
