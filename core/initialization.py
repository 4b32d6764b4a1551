"""Initial weights theta*: the random model, trained for at most 3 epochs; learners start there.

Step 1 of the pipeline (Ro et al. 2023, section 3.1). The examples are not
augmented: this only has to leave the chaotic first steps behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from lipt.common.config.run_config import InitializationConfig
from lipt.common.data import Dataset
from lipt.common.determinism import derive_generator, derive_seed, pinned_kernels, seeded_generators
from lipt.common.errors import RunFailedError
from lipt.common.inputs.model_input import to_model_input
from lipt.common.inputs.specs import InputFormat, call_model
from lipt.common.weights.specs import Weights, copy_to_cpu

_MOMENTUM = 0.9
_WEIGHT_DECAY = 5e-4


def num_initialization_steps(config: InitializationConfig, num_train: int) -> int:
    """How many optimizer steps the configuration asks for.

    `steps` where it is set; else `epochs` times the full batches of an epoch, rounded
    up, so that any positive number trains at all.
    """
    if config.steps is not None:
        return config.steps
    # 0.7 x 10 is 7.000000000000001.
    return math.ceil(config.epochs * _batches_per_epoch(config, num_train) - 1e-9)


def initialize(
    model: nn.Module,
    dataset: Dataset,
    train_ids: Tensor,
    config: InitializationConfig,
    inputs: InputFormat,
    *,
    seed: int,
    device: torch.device,
    cpu_threads: int,
    on_progress: Callable[[int, int], None],
) -> Weights:
    """Train the model by SGD on full batches, shuffled anew in every epoch.

    Momentum 0.9, weight decay 5e-4, a constant learning rate, float32. The same
    arguments give the same weights on the same kind of device.
    """
    model.to(device)
    num_steps = num_initialization_steps(config, len(train_ids))
    if num_steps:
        with (
            seeded_generators(derive_seed(seed, "initialization-layers"), device),
            pinned_kernels(cpu_threads),
        ):
            optimizer = torch.optim.SGD(
                model.parameters(),
                lr=config.learning_rate,
                momentum=_MOMENTUM,
                weight_decay=_WEIGHT_DECAY,
            )
            batches = _batches(train_ids, config, seed)
            for step, ids_B in zip(range(1, num_steps + 1), batches, strict=False):
                inputs_B = to_model_input(dataset.examples(ids_B), inputs, device)
                targets_B = dataset.targets_N[ids_B].to(device)
                loss = dataset.target.mean_loss(call_model(model, inputs_B), targets_B)
                if not math.isfinite(loss.item()):
                    raise RunFailedError(
                        f"the initialization diverged: the loss is {loss.item()} in step {step} "
                        f"of {num_steps}, with learning rate {config.learning_rate}. "
                        "Lower initialization.learning_rate."
                    )
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                on_progress(step, num_steps)
    return copy_to_cpu(model.state_dict())


def _batches_per_epoch(config: InitializationConfig, num_train: int) -> int:
    # A set smaller than one batch is one batch.
    return max(1, num_train // config.batch_size)


def _batches(train_ids: Tensor, config: InitializationConfig, seed: int) -> Iterator[Tensor]:
    num_batches = _batches_per_epoch(config, len(train_ids))
    epoch = 0
    while True:
        generator = derive_generator(seed, "initialization-order", epoch)
        order_N = torch.randperm(len(train_ids), generator=generator)
        yield from torch.split(train_ids[order_N], config.batch_size)[:num_batches]
        epoch += 1
