import copy
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks.value.at_once import Lanes, Training, _batches
from benchmarks.value.cells import PROXIES, STRATEGIES, UNLABELLED, Cell, all_cells
from benchmarks.value.settings import Images, make
from benchmarks.value.tables import page
from benchmarks.value.training import Result, Results
from lipt.trainer.main_training import Recipe

pytestmark = pytest.mark.slow

CELL = Cell("digits", "clean", 0.1, "uniform_per_class", "", "short", "resnet8", 0)


def cells(**given: object) -> list[Cell]:
    chosen = {
        "data": ["digits"],
        "settings": ["clean"],
        "fractions": [0.1, 0.3],
        "strategies": STRATEGIES,
        "proxies": PROXIES,
        "recipes": ["short"],
        "models": ["resnet8"],
        "seeds": range(2),
    }
    return list(all_cells(**(chosen | given)))  # type: ignore[arg-type]


def result(accuracy: float) -> Result:
    return Result(accuracy, 1.0, 100, 0.25, 0.0, "digest", 12.0)


def test_every_cell_stands_once_and_seeds_come_last() -> None:
    found = cells()
    assert len(set(found)) == len(found)
    assert [cell.seed for cell in found] == sorted(cell.seed for cell in found)
    assert sum(cell.strategy == "everything" for cell in cells(seeds=[0])) == 1
    unlabelled = cells(settings=["clean", "noise40"], strategies=UNLABELLED)
    assert {cell.setting for cell in unlabelled} == {"clean"}
    by_strategy: dict[str, set[str]] = {}
    for cell in cells():
        by_strategy.setdefault(cell.strategy, set()).add(cell.proxy)
    assert by_strategy["uniform_per_class"] == by_strategy["oracle"] == {""}
    assert by_strategy["auto"] == {"auto", "ridge:learners", "ridge:patches"}
    assert by_strategy["craig"] == {"soup", "ridge:learners", "ridge:patches"}
    assert by_strategy["dual"] == {"soup"}


def test_a_line_that_was_cut_in_two_is_done_again_and_spoils_no_other(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.add(CELL, result(0.5))
    path = tmp_path / "digits.jsonl"
    path.write_bytes(path.read_bytes() + b'{"data": "digits", "sett')
    results.add(replace(CELL, seed=1), result(0.6))
    assert sorted(cell.seed for cell in results.read()) == [0, 1]


def test_a_row_is_compared_with_random_of_the_same_seeds() -> None:
    better = replace(CELL, strategy="auto", proxy="auto")
    found = {
        **{replace(CELL, seed=seed): value for seed, value in enumerate((0.50, 0.60))},
        **{replace(better, seed=seed): value for seed, value in enumerate((0.54, 0.66))},
    }
    rows = {cell: vars(result(accuracy)) for cell, accuracy in found.items()}
    text = page(rows, [*rows, replace(CELL, seed=2)])
    # Differences 4 and 6 points: mean 5, deviation sqrt 2, t of one degree 12.706.
    line = next(line for line in text.splitlines() if "| auto | auto |" in line)
    assert "60.0% +- 8.5 | +5.0 (-7.7 to +17.7) | 25.0% |" in line
    assert "- digits, short main training of resnet8: 1 of 5 trainings" in text


CLASSES = tuple(map(str, range(10)))


def clean(num_per_class: int = 200) -> Images:
    labels_N = torch.arange(10).repeat_interleave(num_per_class)
    grays_N = torch.arange(len(labels_N)) % 200 + 20
    images_NCHW = grays_N.to(torch.uint8)[:, None, None, None].expand(-1, 1, 4, 4).contiguous()
    return Images(images_NCHW, labels_N, CLASSES)


def test_noise_by_its_share_and_class() -> None:
    wrong = float(make("noise40", clean(2000), seed=0).wrong_N.double().mean())
    # 20,000 draws around 0.4 * 0.9: the deviation is 0.0034.
    assert wrong == pytest.approx(0.36, abs=0.014)
    data = make("asymmetric40", clean(), seed=0)
    assert 0.33 < float(data.wrong_N.double().mean()) < 0.47
    following_N = (data.true_N + 1) % 10
    assert torch.equal(data.images.labels_N[data.wrong_N], following_N[data.wrong_N])


def test_tails_and_copies() -> None:
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
