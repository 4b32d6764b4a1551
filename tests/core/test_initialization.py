from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.config.run_config import InitializationConfig
from lipt.common.data.dataset import Dataset, in_memory
from lipt.common.errors import RunFailedError
from lipt.common.images.formats import ImageFormat
from lipt.common.inputs.model_input import to_model_input
from lipt.common.weights.specs import Weights
from lipt.core.initialization import initialize, num_initialization_steps

CPU = torch.device("cpu")
IMAGE = ImageFormat(1, 4, 4, mean=(0.5,), std=(0.25,))


def make_dataset() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 1, 4, 4), generator=generator, dtype=torch.uint8)
    labels = torch.arange(40) % 2
    images[labels == 1] //= 4
    return in_memory("fake", ("light", "dark"), labels, "0" * 64, images)


def make_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 2)
        )


def run(
    config: InitializationConfig,
    *,
    seed: int = 0,
    threads: int = 1,
    steps: list[tuple[int, int]] | None = None,
) -> Weights:
    def on_progress(done: int, total: int) -> None:
        if steps is not None:
            steps.append((done, total))

    return initialize(
        make_model(),
        make_dataset(),
        torch.arange(40),
        config,
        IMAGE,
        seed=seed,
        device=CPU,
        cpu_threads=threads,
        on_progress=on_progress,
    )


def same(left: Weights, right: Weights) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


@pytest.mark.parametrize(
    ("epochs", "steps", "batch_size", "expected"),
    [
        (0.0, None, 10, 0),
        (1.0, None, 10, 10),
        (0.7, None, 10, 7),  # 0.7 x 10 is 7.000000000000001
        (0.01, None, 10, 1),  # any positive number trains
        (2.5, None, 10, 25),
        (1.0, None, 30, 3),  # the last 10 of 100 are left out
        (2.0, None, 500, 2),  # a set smaller than a batch is one batch
        (1.0, 4, 10, 4),  # steps take precedence
        (1.0, 0, 10, 0),
    ],
)
def test_number_of_steps(epochs: float, steps: int | None, batch_size: int, expected: int) -> None:
    config = InitializationConfig(epochs=epochs, steps=steps, batch_size=batch_size)
    assert num_initialization_steps(config, 100) == expected


def test_no_steps_give_the_weights_back_as_copies() -> None:
    weights = run(InitializationConfig(epochs=0.0))
    assert same(weights, dict(make_model().state_dict()))
    assert not any(value.requires_grad for value in weights.values())


def test_one_step_is_plain_sgd() -> None:
    # One batch of everything, without the layers that draw or normalize: theta - lr (g + wd theta).
    dataset, head = make_dataset(), nn.Linear(16, 2)
    model = nn.Sequential(nn.Flatten(), head)
    start = head.weight.detach().clone()
    loss = functional.cross_entropy(
        model(to_model_input(dataset.images(torch.arange(len(dataset))), IMAGE, CPU)),
        dataset.labels_N,
    )
    (gradient,) = torch.autograd.grad(loss, [head.weight])
    config = InitializationConfig(steps=1, batch_size=40, learning_rate=0.1)
    weights = initialize(
        model,
        dataset,
        torch.arange(40),
        config,
        IMAGE,
        seed=0,
        device=CPU,
        cpu_threads=1,
        on_progress=lambda _done, _total: None,
    )
    torch.testing.assert_close(weights["1.weight"], start - 0.1 * (gradient + 5e-4 * start))


def test_training_lowers_the_loss() -> None:
    def loss(weights: Weights) -> float:
        model, dataset = make_model(), make_dataset()
        model.load_state_dict(weights)
        model.eval()
        inputs = to_model_input(dataset.images(torch.arange(len(dataset))), IMAGE, CPU)
        return functional.cross_entropy(model(inputs), dataset.labels_N).item()

    trained = run(InitializationConfig(steps=20, batch_size=10, learning_rate=0.05))
    assert loss(trained) < 0.5 * loss(dict(make_model().state_dict()))


def test_result_depends_on_the_arguments_alone() -> None:
    config = InitializationConfig(epochs=2.0, batch_size=8)
    first = run(config)
    generator, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.rand(7)
    torch.set_num_threads(2)
    try:
        again = run(config)
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(generator)
    assert same(first, again)
    assert not same(first, run(config, seed=1))


def test_every_epoch_has_its_own_order_of_all_examples() -> None:
    class Watched(Dataset):
        def images(self, ids: Tensor) -> Tensor:
            seen.append(ids.tolist())
            return super().images(ids)

    seen: list[list[int]] = []
    base = make_dataset()
    dataset = Watched(base.rows, base.fingerprint, base.inputs)
    initialize(
        nn.Sequential(nn.Flatten(), nn.Linear(16, 2)),
        dataset,
        torch.arange(0, 40, 2),
        InitializationConfig(epochs=2.0, batch_size=5),
        IMAGE,
        seed=0,
        device=CPU,
        cpu_threads=1,
        on_progress=lambda _done, _total: None,
    )
    epochs = [[row for batch in part for row in batch] for part in (seen[:4], seen[4:])]
    assert [sorted(epoch) for epoch in epochs] == [list(range(0, 40, 2))] * 2
    assert epochs[0] != epochs[1]


def test_progress_is_told_after_every_step() -> None:
    steps: list[tuple[int, int]] = []
    run(InitializationConfig(steps=3, batch_size=8), steps=steps)
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_a_diverging_loss_ends_the_run_with_a_remedy() -> None:
    with pytest.raises(
        RunFailedError, match=r"the loss is .* of 50, with learning rate 1e\+30.*Low"
    ):
        run(InitializationConfig(steps=50, batch_size=8, learning_rate=1e30))
