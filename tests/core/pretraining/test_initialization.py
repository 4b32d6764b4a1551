import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.config.run_config import InitializationConfig
from lipt.common.determinism import derive_generator
from lipt.common.errors import ConfigError, RunFailedError, SignalsError
from lipt.common.tensor_files import Weights, copy_to_cpu
from lipt.core.pretraining import initialization
from lipt.core.pretraining.initialization import (
    BATCH_SIZE,
    WarmUpState,
    initialize,
    num_initialization_steps,
    warm_up,
)
from lipt.core.pretraining.training import Sgd, trained_outputs
from lipt.data.dataset import Dataset
from lipt.data.inputs.model_input import to_model_input
from lipt.data.inputs.specs import ImageFormat
from tests.in_memory import in_memory

CPU = torch.device("cpu")
IMAGE = ImageFormat(1, 4, 4, mean=(0.5,), std=(0.25,))
NUM_TRAIN = 2 * BATCH_SIZE + 100  # 2 full batches of a warm-up


def make_dataset(size: int = NUM_TRAIN + 50) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (size, 1, 4, 4), generator=generator, dtype=torch.uint8)
    labels = torch.arange(size) % 2
    images[labels == 1] //= 4
    return in_memory("fake", ("light", "dark"), labels, "0" * 64, images)


def make_model(dropout: float = 0.5) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten()),
            *(nn.Dropout(dropout), nn.Linear(16, 2)),
        )


def initialized(
    config: InitializationConfig,
    *,
    model: nn.Module | None = None,
    dataset: Dataset | None = None,
    ids: Tensor | None = None,
    seed: int = 0,
    steps: list[tuple[int, int]] | None = None,
) -> Weights:
    return initialize(
        model or make_model(),
        make_dataset(40) if dataset is None else dataset,
        torch.arange(40) if ids is None else ids,
        config,
        IMAGE,
        seed=seed,
        device=CPU,
        cpu_threads=1,
        on_progress=lambda *told: None if steps is None else steps.append(told),
    )


def warmed_up(
    epochs: float,
    model: nn.Module | None = None,
    *,
    seed: int = 0,
    dataset: Dataset | None = None,
    **options: object,
) -> WarmUpState:
    return warm_up(
        model or make_model(),
        dataset or make_dataset(),
        torch.arange(NUM_TRAIN),
        epochs,
        IMAGE,
        seed=seed,
        device=CPU,
        cpu_threads=1,
        **options,  # type: ignore[arg-type]
    )


def same(left: Weights, right: Weights) -> bool:
    return list(left) == list(right) and all(torch.equal(left[n], right[n]) for n in left)


@pytest.mark.parametrize(
    ("epochs", "steps", "batch_size", "expected"),
    [
        (0.0, None, 10, 0),
        (0.7, None, 10, 7),  # 0.7 x 10 is 7.000000000000001
        (0.01, None, 10, 1),  # any positive number trains
        (1.0, None, 30, 3),  # the last 10 of 100 are left out
        (2.0, None, 500, 2),  # a set smaller than a batch is one batch
        (1.0, 4, 10, 4),  # steps take precedence
    ],
)
def test_number_of_steps(epochs: float, steps: int | None, batch_size: int, expected: int) -> None:
    config = InitializationConfig(epochs=epochs, steps=steps, batch_size=batch_size)
    assert num_initialization_steps(config, 100) == expected


@pytest.mark.parametrize(
    ("max_norm", "moved"), [(0.0, [3.0, 4.0]), (1.0, [0.6, 0.8]), (5.0, [3.0, 4.0])]
)
def test_a_gradient_of_norm_5_is_scaled_down_to_the_largest_norm(
    max_norm: float, moved: list[float]
) -> None:
    model = nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    Sgd(model, lr=1.0, max_norm=max_norm).step(model(torch.tensor([3.0, 4.0])).sum())
    torch.testing.assert_close(before - model.weight, torch.tensor([moved]))


def test_one_step_of_initialization_is_plain_sgd() -> None:
    # One batch of everything, without the layers that draw or normalize: theta - lr (g + wd theta).
    dataset, head = make_dataset(40), nn.Linear(16, 2)
    model = nn.Sequential(nn.Flatten(), head)
    start = head.weight.detach().clone()
    inputs = to_model_input(dataset.images(torch.arange(40)), IMAGE, CPU)
    loss = functional.cross_entropy(model(inputs), dataset.labels_N)
    (gradient,) = torch.autograd.grad(loss, [head.weight])
    config = InitializationConfig(steps=1, batch_size=40, learning_rate=0.1)
    weights = initialized(config, model=model, dataset=dataset)
    torch.testing.assert_close(weights["1.weight"], start - 0.1 * (gradient + 5e-4 * start))


def test_a_warm_up_equals_a_plain_loop() -> None:
    # Without dropout, and images too small to be shifted, so that only the order is drawn.
    dataset, model = make_dataset(), make_model(dropout=0.0)
    parameters = list(model.parameters())
    buffers = [torch.zeros_like(parameter) for parameter in parameters]
    step = 0
    for epoch in range(2):
        order = torch.randperm(NUM_TRAIN, generator=derive_generator(7, "warm-up-order", epoch))
        for ids in (order[:256], order[256:512]):
            rate = 0.05 * (1 + math.cos(math.pi * step / 4))
            loss = functional.cross_entropy(
                model((dataset.images(ids).float() / 255 - 0.5) / 0.25), dataset.labels_N[ids]
            )
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient, buffer in zip(parameters, gradients, buffers, strict=True):
                    buffer.mul_(0.9).add_(gradient + 5e-4 * parameter)
                    parameter.sub_(rate * buffer)
            step += 1
    warmed = warmed_up(2, make_model(dropout=0.0), seed=7)
    assert (warmed.step, warmed.momentum) == (4, {})
    for name, values in model.state_dict().items():
        torch.testing.assert_close(warmed.weights[name], values, rtol=1e-4, atol=1e-6)


def test_initialization_depends_only_on_its_arguments() -> None:
    config = InitializationConfig(epochs=2.0, batch_size=8)
    first = initialized(config)
    generator, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.rand(7)
    torch.set_num_threads(2)
    try:
        again = initialized(config)
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(generator)
    assert same(first, again)
    assert not same(first, initialized(config, seed=1))


def test_a_resumed_warm_up_has_the_same_weights() -> None:
    kept: list[WarmUpState] = []
    whole = warmed_up(3, on_epoch=kept.append)
    assert [warmed.step for warmed in kept] == [2, 4]
    for begun in kept:
        went_on = warmed_up(3, begun=begun)
        assert same(went_on.weights, whole.weights)
        assert went_on.seconds > begun.seconds
    assert not same(warmed_up(3, seed=1).weights, whole.weights)


def test_frozen_parameters_stay() -> None:
    model = make_model()
    first = copy_to_cpu(model.state_dict())["0.weight"]
    model[0].weight.requires_grad = False  # type: ignore[index,union-attr]
    warmed = warmed_up(1, model)
    assert torch.equal(warmed.weights["0.weight"], first)
    assert not torch.equal(warmed.weights["4.weight"], make_model().state_dict()["4.weight"])


def test_a_diverging_loss_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    config = InitializationConfig(steps=50, batch_size=8, learning_rate=1e30)
    with pytest.raises(RunFailedError, match=r"of 50, with learning rate 1e\+30.*Lower init"):
        initialized(config)
    monkeypatch.setattr(initialization, "LEARNING_RATE", 1e30)
    with pytest.raises(SignalsError, match=r"in step 2 of 2\. .*without `pretraining`"):
        warmed_up(1)


class BreaksOnWhite(nn.Module):
    """NaN for an image without a dark pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 2)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        rows_BD = images_BCHW.flatten(1)
        factor_B = torch.where(rows_BD.amin(dim=1) > 1.9, math.nan, 1.0)
        return self.fc(rows_BD) * factor_B[:, None]  # type: ignore[no-any-return]


def test_examples_on_which_an_untrained_model_is_not_finite_are_named() -> None:
    dataset = make_dataset()
    images = dataset.images(torch.arange(len(dataset))).clone()
    images[30] = 255
    dataset = in_memory("fake", ("light", "dark"), dataset.labels_N, "0" * 64, images)
    config = InitializationConfig(steps=50, batch_size=8)
    named = r"outputs are not finite for 1 of \d+ examples, with ids 30: .*not trained yet"
    with pytest.raises(SignalsError, match=named):
        initialized(config, model=BreaksOnWhite(), dataset=dataset)
    with pytest.raises(SignalsError, match=named):
        warmed_up(1, BreaksOnWhite(), dataset=dataset)


def test_batch_norm_of_one_value_is_refused_with_a_remedy() -> None:
    one, two = torch.zeros(1, 3), torch.zeros(2, 3)
    layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    assert trained_outputs(layers, two).shape == (2, 4)
    with pytest.raises(ConfigError, match=r"no variance in a batch of one example\. Train on 2 ex"):
        trained_outputs(layers, one)
    # Of a map of several pixels there is a variance.
    assert trained_outputs(nn.BatchNorm2d(1), torch.zeros(1, 1, 2, 2)).shape == (1, 1, 2, 2)

    def own(_: Tensor) -> Tensor:
        raise ValueError("mine")

    with pytest.raises(ConfigError, match="ValueError: mine"):
        trained_outputs(own, one)
