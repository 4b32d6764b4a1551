from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from lipt.common.data.dataset import Dataset, in_memory
from lipt.common.determinism import derive_generator
from lipt.common.errors import SignalsError
from lipt.common.images.crop_flip import crop_flip
from lipt.common.images.formats import ImageFormat
from lipt.common.weights.specs import Weights, copy_to_cpu
from lipt.core.warm_up import (
    BATCH_SIZE,
    Warmed,
    learning_rate_at,
    num_warm_up_steps,
    warm_up,
)

CPU = torch.device("cpu")
IMAGE = ImageFormat(1, 4, 4, mean=(0.5,), std=(0.25,))
NUM_TRAIN = 2 * BATCH_SIZE + 100  # 2 full batches


def make_dataset() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    size = (NUM_TRAIN + 50, 1, 4, 4)
    images = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
    labels = torch.arange(len(images)) % 2
    images[labels == 1] //= 4
    return in_memory("fake", ("light", "dark"), labels, "0" * 64, images)


def make_model(dropout: float = 0.5) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten()),
            *(nn.Dropout(dropout), nn.Linear(16, 2)),
        )


def run(
    epochs: float, model: nn.Module | None = None, *, seed: int = 0, **options: object
) -> Warmed:
    return warm_up(
        model or make_model(),
        make_dataset(),
        torch.arange(NUM_TRAIN),
        epochs,
        IMAGE,
        seed=seed,
        device=CPU,
        cpu_threads=1,
        **options,  # type: ignore[arg-type]
    )


def same(left: Weights, right: Weights) -> bool:
    assert list(left) == list(right)
    return all(torch.equal(left[name], right[name]) for name in left)


def test_it_is_a_plain_loop() -> None:
    # Without dropout, so that nothing is drawn but order, crops and flips.
    dataset, model = make_dataset(), make_model(dropout=0.0)
    parameters = list(model.parameters())
    buffers = [torch.zeros_like(parameter) for parameter in parameters]
    step = 0
    for epoch in range(2):
        order = torch.randperm(NUM_TRAIN, generator=derive_generator(7, "warm-up-order", epoch))
        for ids in (order[:256], order[256:512]):
            rate = 0.05 * (1 + math.cos(math.pi * step / 4))
            generator = derive_generator(7, "warm-up-augmentation", step)
            images = crop_flip(dataset.images(ids), generator=generator)
            loss = functional.cross_entropy(
                model((images.float() / 255 - 0.5) / 0.25), dataset.labels_N[ids]
            )
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient, buffer in zip(parameters, gradients, buffers, strict=True):
                    buffer.mul_(0.9).add_(gradient + 5e-4 * parameter)
                    parameter.sub_(rate * buffer)
            step += 1
    warmed = run(2, make_model(dropout=0.0), seed=7)
    assert warmed.step == 4
    assert warmed.momentum == {}
    for name, values in model.state_dict().items():
        torch.testing.assert_close(warmed.weights[name], values, rtol=1e-4, atol=1e-6)


def test_the_rate_is_a_cosine_from_a_tenth_to_nothing() -> None:
    assert learning_rate_at(0, 4) == pytest.approx(0.1)
    assert learning_rate_at(2, 4) == pytest.approx(0.05)
    assert learning_rate_at(4, 4) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("epochs", "num_train", "steps"),
    [(0, 1000, 0), (1, 1000, 3), (0.5, 1000, 2), (2, 10, 2), (0.7, 2560, 7), (15, 45000, 2625)],
)
def test_steps_are_epochs_of_full_batches_rounded_up(
    epochs: float, num_train: int, steps: int
) -> None:
    assert num_warm_up_steps(epochs, num_train) == steps


def test_no_epochs_leave_the_weights() -> None:
    assert same(run(0).weights, make_model().state_dict())


def test_the_seed_decides_the_weights() -> None:
    assert same(run(1.5).weights, run(1.5).weights)
    assert not same(run(1.5).weights, run(1.5, seed=1).weights)


def test_what_goes_on_from_an_epochs_end_comes_to_the_same_weights() -> None:
    kept: list[Warmed] = []
    whole = run(3, on_epoch=kept.append)
    assert [warmed.step for warmed in kept] == [2, 4]
    for begun in kept:
        went_on = run(3, begun=begun)
        assert same(went_on.weights, whole.weights)
        assert went_on.seconds > begun.seconds


def test_examples_that_are_not_trained_on_change_nothing() -> None:
    changed = make_dataset()
    changed.labels_N[NUM_TRAIN:] = 0
    ids = torch.arange(NUM_TRAIN)
    warmed = warm_up(make_model(), changed, ids, 1, IMAGE, seed=0, device=CPU, cpu_threads=1)
    assert same(warmed.weights, run(1).weights)


def test_frozen_parameters_stay() -> None:
    model = make_model()
    first = copy_to_cpu(model.state_dict())["0.weight"]
    model[0].weight.requires_grad = False  # type: ignore[index,union-attr]
    warmed = run(1, model)
    assert torch.equal(warmed.weights["0.weight"], first)
    assert not torch.equal(warmed.weights["4.weight"], make_model().state_dict()["4.weight"])


def test_a_model_that_diverges_is_refused_with_a_remedy() -> None:
    model = make_model()
    with torch.no_grad():
        model[4].weight.fill_(math.inf)  # type: ignore[index,union-attr,operator]
    with pytest.raises(
        SignalsError, match=r"diverged: .* in step 2 of 2\. .*without `pretraining`"
    ):
        run(1, model)
