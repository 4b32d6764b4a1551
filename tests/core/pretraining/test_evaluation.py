import math
from collections.abc import Mapping
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from lipt.common.config.run_config import RunConfig
from lipt.common.config.values import validate
from lipt.core.pretraining.evaluation import (
    Evaluator,
    OpenWeights,
    batch_size_for,
    num_evaluated_together,
    reestimate_batch_norm,
)
from lipt.core.pretraining.soup import Soup, greedy_soup
from lipt.data.inputs.model_input import images_in
from lipt.data.inputs.specs import Column, ColumnsSpec, ColumnType, ImageFormat, ImageSpec
from lipt.data.targets.values import SingleLabel
from lipt.models.head import frozen_names
from lipt.models.registry import build_model
from tests.core.signals.made_up import IMAGE, made_up_dataset, made_up_network

# Pixels reach the model as value / 255.
PIXEL = ImageFormat(3, 1, 1, mean=(0.0,) * 3, std=(1.0,) * 3)


class Channels(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def images(*values: tuple[int, int, int]) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8).reshape(-1, 3, 1, 1)


def accuracy(model: nn.Module, shown: Tensor, labels_N: Tensor, batch_size: int = 128) -> float:
    evaluator = Evaluator([model], PIXEL, "cpu", shown, SingleLabel(3), labels_N, None, batch_size)
    return evaluator.score(model.state_dict()).accuracy


def test_counts_the_largest_logits() -> None:
    # Predictions 0, 1, 2, 2.
    shown = images((9, 1, 1), (1, 9, 1), (1, 1, 9), (0, 0, 1))
    labels = torch.tensor([0, 1, 2, 0])
    assert accuracy(Channels(), shown, labels) == 0.75


def make_evaluator(*, reestimate: bool, batch_size: int = 128) -> Evaluator:
    # Channel 0 is brighter by a constant: only fresh statistics tell the classes apart.
    generator = torch.Generator().manual_seed(0)
    shown = torch.randint(0, 100, (129, 3, 1, 1), generator=generator, dtype=torch.uint8)
    labels = shown.flatten(1).int().argmax(dim=1)
    shown[:, 0] += 120
    model = nn.Sequential(nn.BatchNorm2d(3, affine=False), Channels())
    return Evaluator(
        [model],
        inputs=PIXEL,
        device="cpu",
        examples_N=shown,
        target=SingleLabel(3),
        targets_N=labels,
        batch_norm_examples_M=shown if reestimate else None,
        batch_size=batch_size,
    )


def stale(evaluator: Evaluator) -> dict[str, Tensor]:
    weights = {name: value.clone() for name, value in evaluator.models[0].state_dict().items()}
    weights["0.running_mean"].fill_(0.9)
    return weights


def test_reestimated_statistics_are_those_of_the_accuracy() -> None:
    evaluator = make_evaluator(reestimate=True)
    weights = stale(evaluator)
    scored = evaluator.score(weights)
    assert scored.statistics.keys() == {"0.running_mean", "0.running_var", "0.num_batches_tracked"}
    mean = images_in(evaluator.examples_N).float().mean(dim=(0, 2, 3)) / 255
    torch.testing.assert_close(scored.statistics["0.running_mean"], mean)
    assert weights["0.running_mean"].tolist() == pytest.approx([0.9] * 3)
    # Evaluated as they are, the statistics weights score the same.
    plain = make_evaluator(reestimate=False)
    assert plain.score(weights | scored.statistics).accuracy == scored.accuracy


def test_batch_norm_reestimation_is_optional_and_skips_a_batch_of_one() -> None:
    fresh, plain = make_evaluator(reestimate=True), make_evaluator(reestimate=False)
    scored = plain.score(stale(plain))
    assert scored.statistics == {}
    assert scored.accuracy < 0.5
    assert fresh.score(stale(fresh)).accuracy > 0.8
    # 129 images in batches of 128 are taken as 65 + 64; one value has no variance.
    scored = fresh.score(stale(fresh))
    assert scored.statistics["0.num_batches_tracked"].item() == 2
    assert scored.statistics["0.running_var"].isfinite().all()


@pytest.mark.parametrize(("pixels", "size"), [(32, 64), (8, 1024), (4, 1024), (64, 16), (224, 16)])
def test_evaluation_batches_fit_a_cpu_cache(pixels: int, size: int) -> None:
    inputs = ImageSpec(3, pixels, pixels)
    assert batch_size_for(inputs, torch.device("cpu")) == size
    assert batch_size_for(inputs, torch.device("cuda", 0)) == 256


@pytest.mark.parametrize(("words", "size"), [(128, 64), (512, 16), (15, 546), (1, 1024)])
def test_evaluation_batches_of_columns_do_so_as_well(words: int, size: int) -> None:
    inputs = ColumnsSpec((Column("text", ColumnType.INT64, (words,)),))
    assert batch_size_for(inputs, torch.device("cpu")) == size


class Shown(nn.Module):
    """Keeps what it is shown; its logits are the image's values times a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return x.flatten(1) * self.scale


def test_evaluation_stops_once_a_minimum_is_unreachable() -> None:
    # Right: 2 of the first two, 0 of the next two, 2 of the last two.
    model, shown, targets_N = Shown(), images(*[(9, 1, 1)] * 6), torch.tensor([0, 0, 1, 1, 0, 0])
    evaluator = Evaluator([model], PIXEL, "cpu", shown, SingleLabel(3), targets_N, None, 2)
    weights = {"scale": torch.tensor(1.0)}
    # After four examples two are right, and at most 4 of 6 in the end: that is not above 2/3.
    assert evaluator.score(weights, 4 / 6).accuracy == -math.inf
    assert model.sizes == [2, 2]
    scored = evaluator.score(weights, 3 / 6)
    assert scored.accuracy == evaluator.score(weights).accuracy == 4 / 6


def test_features_are_shared_if_only_the_head_differs() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    shown = torch.randint(0, 256, (70, 3, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 3, (70,), generator=generator)
    image = ImageFormat(3, 8, 8, mean=(0.5,) * 3, std=(0.25,) * 3)
    model = build_model("resnet8", num_classes=3, inputs=ImageSpec(3, 8, 8), seed=0)
    calls: list[int] = []
    model.register_forward_pre_hook(lambda _, given: calls.append(len(given[0])))
    frozen = frozen_names(model, ["all-but-head"])
    sharing = Evaluator(
        [model], image, "cpu", shown, SingleLabel(3), labels, shown, batch_size=32, frozen=frozen
    )
    plain = Evaluator([model], image, "cpu", shown, SingleLabel(3), labels, None, batch_size=32)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(3):
        weights = {
            name: tensor if name in frozen else torch.randn_like(tensor)
            for name, tensor in start.items()
        }
        calls.clear()
        shared = sharing.score(weights)
        assert shared.statistics == {}
        assert len(calls) in (0, 3)
        assert shared.accuracy == plain.score(weights).accuracy
    assert len(calls) == 3  # the plain one's


def stale_layer(layer: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
    cast("Tensor", layer.running_mean).fill_(7.0)
    cast("Tensor", layer.running_var).fill_(9.0)


def statistics(layer: nn.Module) -> tuple[list[float], list[float]]:
    mean, variance = cast("Tensor", layer.running_mean), cast("Tensor", layer.running_var)
    return mean.tolist(), variance.tolist()


def test_a_smaller_last_batch_weighs_less_and_only_statistics_change() -> None:
    # (0, 0, 3, 3) and (9, 11): mean 26 / 6; variances 3 and 2, weighted 4 : 2, so 16 / 6.
    layer = nn.BatchNorm1d(1)
    batches = [torch.tensor([[0.0], [0.0], [3.0], [3.0]]), torch.tensor([[9.0], [11.0]])]
    reestimate_batch_norm(layer, batches)
    mean, variance = statistics(layer)
    assert mean == pytest.approx([26 / 6])
    assert variance == pytest.approx([16 / 6])
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, momentum=0.3), nn.Dropout(0.5))
    model.train()
    model[1].eval()
    before = {name: value.clone() for name, value in model.named_parameters()}
    reestimate_batch_norm(model, [torch.ones(4, 2), torch.zeros(4, 2)])
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert model[1].momentum == 0.3
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    assert all(value.grad is None for value in model.parameters())


@pytest.mark.parametrize(
    "model", [nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False), nn.LayerNorm(2)]
)
def test_a_model_without_statistics_is_not_even_run(model: nn.Module) -> None:
    assert reestimate_batch_norm(model, [torch.ones(4, 4)]) == {}


def test_statistics_are_copies_under_the_names_of_the_state_dict() -> None:
    shared = nn.BatchNorm1d(2)
    model = nn.Sequential(shared, nn.Linear(2, 2), shared)
    taken = reestimate_batch_norm(model, [torch.zeros(4, 2)])
    state = model.state_dict()
    assert set(taken) == {name for name in state if name.startswith(("0.r", "2.r", "0.n", "2.n"))}
    stale_layer(shared)
    assert 7.0 not in taken["0.running_mean"].tolist()
    layers = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    for layer in layers:
        stale_layer(layer)
    model = nn.Sequential(*layers)
    frozen = {f"0.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    told = reestimate_batch_norm(model, [torch.tensor([[0.0], [2.0]])], frozen)
    assert statistics(model[0]) == ([7.0], [9.0])
    # (0 - 7) / 3 and (2 - 7) / 3 have the mean -2.
    assert statistics(model[1])[0] == pytest.approx([-2.0], abs=1e-5)
    assert all(name.startswith("1.") for name in told)


DATASET = made_up_dataset(120)
EVERY = torch.arange(120)


def evaluator_of(number: int) -> Evaluator:
    return Evaluator(
        [made_up_network() for _ in range(number)],
        inputs=IMAGE,
        device="cpu",
        examples_N=DATASET.examples(EVERY),
        target=SingleLabel(3),
        targets_N=DATASET.labels_N,
        batch_norm_examples_M=DATASET.examples(EVERY[:64]),
        batch_size=32,
    )


def learners(number: int) -> list[OpenWeights]:
    # Made beforehand: they draw from the process's generator.
    made = [made_up_network(seed=seed).state_dict() for seed in range(number)]
    return [lambda weights=weights: weights for weights in made]


def soup_of(num_evaluators: int) -> Soup:
    scored = evaluator_of(num_evaluators)
    return greedy_soup(learners(4), scored, num_alphas=5, on_progress=lambda *_: None)


def test_parallel_evaluation_changes_no_bit_of_a_soup() -> None:
    one, several = soup_of(1), soup_of(3)
    assert several.ingredients == one.ingredients
    assert all(torch.equal(several.weights[name], one.weights[name]) for name in one.weights)


def test_each_thread_computes_alone() -> None:
    seen: list[int] = []
    weights = made_up_network().state_dict()

    def opened() -> Mapping[str, Tensor]:
        seen.append(torch.get_num_threads())
        return weights

    before = torch.get_num_threads()
    list(evaluator_of(2)([opened] * 4, -math.inf))
    assert seen == [1] * 4
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("threads", "num_learners", "num_alphas", "together"),
    [(1, 10, 10, 1), (2, 10, 10, 2), (64, 10, 10, 10), (64, 3, 21, 20), (64, 1, 1, 1)],
)
def test_parallel_evaluations_respect_their_limit(
    threads: int, num_learners: int, num_alphas: int, together: int
) -> None:
    given = {
        "evaluation_threads": threads,
        "learners": {"num_learners": num_learners},
        "soup": {"method": "interpolation", "num_alphas": num_alphas},
    }
    assert num_evaluated_together(validate(RunConfig, given)) == together
