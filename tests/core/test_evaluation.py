from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.model_input import images_in, to_model_input
from lipt.common.inputs.specs import ImageSpec
from lipt.common.models import build_model
from lipt.common.models.head import frozen_names
from lipt.common.targets.values import SingleLabel
from lipt.core import evaluation
from lipt.core.evaluation import Evaluator, batch_size_for

# Pixels reach the model as value / 255.
IMAGE = ImageFormat(3, 1, 1, mean=(0.0,) * 3, std=(1.0,) * 3)


class Channels(nn.Module):
    """Three logits: an image's three values."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def images(*values: tuple[int, int, int]) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8).reshape(-1, 3, 1, 1)


def accuracy(model: nn.Module, shown: Tensor, labels_N: Tensor, batch_size: int = 128) -> float:
    evaluator = Evaluator(model, IMAGE, "cpu", shown, SingleLabel(3), labels_N, None, batch_size)
    return evaluator(model.state_dict()).accuracy


def test_counts_the_largest_logits() -> None:
    # Predictions 0, 1, 2, 2.
    shown = images((9, 1, 1), (1, 9, 1), (1, 1, 9), (0, 0, 1))
    labels = torch.tensor([0, 1, 2, 0])
    assert accuracy(Channels(), shown, labels) == 0.75


@pytest.mark.parametrize("batch_size", [1, 7, 128, 200])
def test_batch_size_does_not_matter(batch_size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    shown = torch.randint(0, 256, (200, 3, 1, 1), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 3, (200,), generator=generator)
    expected = (shown.flatten(1).float().argmax(dim=1) == labels).sum().item() / 200
    score = accuracy(Channels(), shown, labels, batch_size=batch_size)
    assert score == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_outputs_that_are_not_finite_are_wrong(value: float) -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            logits = x.flatten(1).clone()
            logits[x[:, 1, 0, 0] > 0, 0] = value
            return logits

    # The second image's logit 0 is not finite; NaN and infinity would be its argmax.
    shown = images((9, 0, 0), (1, 1, 9))
    assert accuracy(Broken(), shown, torch.tensor([0, 0])) == 0.5
    assert accuracy(Broken(), shown, torch.tensor([0, 2])) == 0.5


def test_runs_in_evaluation_mode_and_restores_the_flags() -> None:
    model = nn.Sequential(Channels(), nn.Dropout(0.9))
    model.train()
    shown = images(*[(0, 1, 0)] * 50)
    assert accuracy(model, shown, torch.ones(50, dtype=torch.int64)) == 1.0
    assert all(module.training for module in model.modules())


def test_no_examples_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"over 0 examples.*validation\.fraction"):
        accuracy(Channels(), images()[:0], torch.empty(0).long())


def make_evaluator(*, reestimate: bool, batch_size: int = 128) -> Evaluator:
    # Channel 0 is brighter by a constant: only fresh statistics tell the classes apart.
    generator = torch.Generator().manual_seed(0)
    shown = torch.randint(0, 100, (129, 3, 1, 1), generator=generator, dtype=torch.uint8)
    labels = shown.flatten(1).int().argmax(dim=1)
    shown[:, 0] += 120
    model = nn.Sequential(nn.BatchNorm2d(3, affine=False), Channels())
    return Evaluator(
        model=model,
        inputs=IMAGE,
        device="cpu",
        examples_N=shown,
        target=SingleLabel(3),
        targets_N=labels,
        batch_norm_examples_M=shown if reestimate else None,
        batch_size=batch_size,
    )


def stale(evaluator: Evaluator) -> dict[str, Tensor]:
    weights = {name: value.clone() for name, value in evaluator.model.state_dict().items()}
    weights["0.running_mean"].fill_(0.9)
    return weights


def test_mended_statistics_are_those_that_the_accuracy_was_reached_with() -> None:
    evaluator = make_evaluator(reestimate=True)
    weights = stale(evaluator)
    scored = evaluator(weights)
    assert scored.mended.keys() == {
        "0.running_mean",
        "0.running_var",
        "0.num_batches_tracked",
    }
    mean = images_in(evaluator.examples_N).float().mean(dim=(0, 2, 3)) / 255
    torch.testing.assert_close(scored.mended["0.running_mean"], mean)
    assert weights["0.running_mean"].tolist() == pytest.approx([0.9] * 3)
    # Evaluated as they are, the mended weights score the same.
    plain = make_evaluator(reestimate=False)
    assert plain(weights | scored.mended).accuracy == scored.accuracy


def test_the_switch_evaluates_weights_as_they_come() -> None:
    fresh, plain = make_evaluator(reestimate=True), make_evaluator(reestimate=False)
    scored = plain(stale(plain))
    assert scored.mended == {}
    assert scored.accuracy < 0.5
    assert fresh(stale(fresh)).accuracy > 0.8


def test_earlier_weights_leave_no_trace() -> None:
    evaluator = make_evaluator(reestimate=True)
    weights = stale(evaluator)
    first = evaluator(weights)
    again = evaluator(weights | first.mended)
    assert again.accuracy == first.accuracy
    assert all(torch.equal(again.mended[name], first.mended[name]) for name in first.mended)


def test_no_estimate_is_made_from_a_last_batch_of_one() -> None:
    # 129 images in batches of 128 are taken as 65 + 64; one value has no variance.
    scored = make_evaluator(reestimate=True)(stale(make_evaluator(reestimate=True)))
    assert scored.mended["0.num_batches_tracked"].item() == 2
    assert scored.mended["0.running_var"].isfinite().all()


def test_a_model_without_batch_norm_has_nothing_to_mend() -> None:
    shown = images((9, 1, 1))
    evaluator = Evaluator(
        model=Channels(),
        inputs=IMAGE,
        device="cpu",
        examples_N=shown,
        target=SingleLabel(3),
        targets_N=torch.tensor([0]),
        batch_norm_examples_M=shown,
    )
    scored = evaluator({})
    assert (scored.accuracy, scored.mended) == (1.0, {})


@pytest.mark.parametrize(("pixels", "size"), [(32, 64), (8, 1024), (4, 1024), (64, 16), (224, 16)])
def test_batches_hold_as_many_pixels_as_a_cpu_caches(pixels: int, size: int) -> None:
    inputs = ImageSpec(3, pixels, pixels)
    assert batch_size_for(inputs, torch.device("cpu")) == size
    assert batch_size_for(inputs, torch.device("cuda", 0)) == 256


class Shown(nn.Module):
    """Keeps what it is shown; its logits are the image's values times a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return x.flatten(1) * self.scale


def scaled(value: float) -> dict[str, Tensor]:
    return {"scale": torch.tensor(value)}


def split_of(labels: list[int], batch_size: int) -> tuple[Evaluator, Shown]:
    """A split whose images all show class 0, with these labels."""
    model = Shown()
    shown = images(*[(9, 1, 1)] * len(labels))
    targets_N = torch.tensor(labels)
    evaluator = Evaluator(model, IMAGE, "cpu", shown, SingleLabel(3), targets_N, None, batch_size)
    return evaluator, model


def test_weights_are_given_up_once_they_cannot_be_above_the_floor() -> None:
    # Right: 2 of the first two, 0 of the next two, 2 of the last two.
    evaluator, model = split_of([0, 0, 1, 1, 0, 0], batch_size=2)
    # After four examples two are right, and at most 4 of 6 in the end: that is not above 2/3.
    assert evaluator(scaled(1.0), 4 / 6).accuracy == -math.inf
    assert model.sizes == [2, 2]
    scored = evaluator(scaled(1.0), 3 / 6)
    assert scored.accuracy == evaluator(scaled(1.0)).accuracy == 4 / 6


def test_a_score_that_is_the_floor_is_not_above_it() -> None:
    evaluator, _ = split_of([0, 1], batch_size=2)
    assert evaluator(scaled(1.0), 0.5).accuracy == -math.inf
    assert evaluator(scaled(1.0), 0.49).accuracy == 0.5


def test_model_inputs_are_made_once_and_as_many_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def watched(examples_B: Tensor, *others: Any) -> Any:
        made.append(len(examples_B))
        return to_model_input(examples_B, *others)

    monkeypatch.setattr(evaluation, "to_model_input", watched)
    evaluator, _ = split_of([0] * 5, batch_size=2)
    evaluator(scaled(1.0))
    evaluator(scaled(2.0))
    assert made == [2, 2, 1]
    # Room for one batch of two images of three float32.
    monkeypatch.setattr(evaluation, "_MOST_KEPT_BYTES", 2 * 3 * 4)
    evaluator, _ = split_of([0] * 5, batch_size=2)
    made.clear()
    evaluator(scaled(1.0))
    evaluator(scaled(2.0))
    assert made == [2, 2, 1, 2, 1]


def test_features_are_computed_once_where_the_head_alone_differs() -> None:
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
        model, image, "cpu", shown, SingleLabel(3), labels, shown, batch_size=32, frozen=frozen
    )
    plain = Evaluator(model, image, "cpu", shown, SingleLabel(3), labels, None, batch_size=32)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(3):
        weights = {
            name: tensor if name in frozen else torch.randn_like(tensor)
            for name, tensor in start.items()
        }
        calls.clear()
        shared = sharing(weights)
        assert shared.mended == {}
        assert len(calls) in (0, 3)
        assert shared.accuracy == plain(weights).accuracy
    assert len(calls) == 3  # the plain one's


def test_where_more_than_the_head_differs_every_layer_is_run() -> None:
    evaluator, model = split_of([0, 1], batch_size=2)
    evaluator(scaled(1.0))
    evaluator(scaled(2.0))
    assert model.sizes == [2, 2]
