import copy
from typing import cast

import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks.value.parallel_training import Lanes, Training, _batches
from benchmarks.value.settings import Images, make
from lipt.trainer.main_training import Recipe

pytestmark = pytest.mark.slow


CLASSES = tuple(map(str, range(10)))


def clean(num_per_class: int = 200) -> Images:
    labels_N = torch.arange(10).repeat_interleave(num_per_class)
    grays_N = torch.arange(len(labels_N)) % 200 + 20
    images_NCHW = grays_N.to(torch.uint8)[:, None, None, None].expand(-1, 1, 4, 4).contiguous()
    return Images(images_NCHW, labels_N, CLASSES)


def test_label_noise_has_the_requested_share_and_classes() -> None:
    wrong = float(make("noise40", clean(2000), seed=0).wrong_N.double().mean())
    # 20,000 draws around 0.4 * 0.9: the deviation is 0.0034.
    assert wrong == pytest.approx(0.36, abs=0.014)
    data = make("asymmetric40", clean(), seed=0)
    assert 0.33 < float(data.wrong_N.double().mean()) < 0.47
    following_N = (data.true_N + 1) % 10
    assert torch.equal(data.images.labels_N[data.wrong_N], following_N[data.wrong_N])


def test_long_tails_and_duplicates_have_the_requested_sizes() -> None:
    counts = sorted(make("tail50", clean(), seed=0).images.labels_N.bincount().tolist())
    expected = sorted(round(200 * 50 ** (-place / 9)) for place in range(10))
    assert counts == expected
    assert counts[-1] == 200
    assert counts[0] == 4
    data = make("duplicates", clean(), seed=0)
    assert len(data.images) == 800
    assert int(data.ideal_N.sum()) == 200 == len(data.original_N.unique())
    assert not data.wrong_N.any()
    means_N = data.images.images_NCHW.double().mean(dim=(1, 2, 3))
    grays_N = clean().images_NCHW[data.original_N].double().mean(dim=(1, 2, 3))
    # A tenth brighter or darker at most, and noise of 4 levels over 16 pixels.
    assert ((means_N - grays_N).abs() <= 0.1 * grays_N + 5).all()
    # Few images have most copies.
    counts = data.original_N.unique(return_counts=True)[1]
    assert int(counts.max()) > 50
    assert int((counts == 1).sum()) > 20


MEAN_C, STD_C = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.25, 0.3])


def training(seed: int, *, num_drawn: int | None = None) -> Training:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    rows_K = torch.arange(10 * seed, 10 * seed + 20)
    recipe = Recipe(
        steps=7, batch_size=6, drop_last=True, augmentation="crop", padding=0, seed=seed
    )
    return Training(model, rows_K, torch.rand(20, 5).softmax(1), MEAN_C, STD_C, recipe, num_drawn)


def test_parallel_trainings_equal_plain_sgd() -> None:
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
