"""Initialization: theta*, trained for the chaotic first steps; and warm-ups, the price it replaces.

Shapes: N examples of the training split, B of a batch.
Source: LiPT (Ro et al. 2023), section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count, islice
from time import monotonic

import torch
from torch import Tensor, nn

from lipt.common.computation import computation
from lipt.common.config.run_config import InitializationConfig, RunConfig
from lipt.common.determinism import derive_generator, derive_seed, seeded_generators
from lipt.common.errors import RunFailedError, SignalsError
from lipt.common.tensor_files import Weights, copy_to_cpu
from lipt.core.kept_values import KeptValue
from lipt.core.pretraining.training import (
    Sgd,
    optimizer_of,
    require_finite_outputs,
    trained_outputs,
)
from lipt.data.dataset import Dataset
from lipt.data.images.formats import crop_flip, mild_augmentation
from lipt.data.inputs.model_input import Stored, to_model_input
from lipt.data.inputs.specs import ImageFormat, InputFormat, call_model
from lipt.models.registry import comes_trained

_MOMENTUM, _WEIGHT_DECAY = 0.9, 5e-4
# For ordinary warm-ups.
BATCH_SIZE, LEARNING_RATE = 256, 0.1


def num_steps_of(epochs: float, num_train: int, batch_size: int = BATCH_SIZE) -> int:
    """Optimizer steps on full batches, of a warm-up's size by default."""
    # Rounded up, so that any positive number trains; 0.7 x 10 is 7.000000000000001.
    return math.ceil(epochs * max(1, num_train // batch_size) - 1e-9)


@dataclass(frozen=True)
class _Epochs:
    model: nn.Module
    dataset: Dataset
    train_ids: Tensor
    inputs: InputFormat
    device: torch.device
    batch_size: int
    # Names the generators of the order.
    purpose: str
    seed: int
    augmented: Callable[[Stored, int], Stored] = lambda stored_B, _step: stored_B

    @property
    def num_batches(self) -> int:
        # A set smaller than one batch is one batch.
        return max(1, len(self.train_ids) // self.batch_size)

    def losses(self, epoch: int) -> Iterator[Tensor]:
        generator = derive_generator(self.seed, f"{self.purpose}-order", epoch)
        order_N = torch.randperm(len(self.train_ids), generator=generator)
        batches = torch.split(self.train_ids[order_N], self.batch_size)[: self.num_batches]
        for step, ids_B in enumerate(batches, epoch * self.num_batches):
            stored_B = self.augmented(self.dataset.examples(ids_B), step)
            inputs_B = to_model_input(stored_B, self.inputs, self.device)
            targets_B = self.dataset.targets_N[ids_B].to(self.device)
            yield self.dataset.target.mean_loss(trained_outputs(self.model, inputs_B), targets_B)

    def require_finite_at(self, weights: Weights) -> None:
        """Refuse examples on which the model with these first weights is not finite."""
        self.model.load_state_dict(weights)
        ids = torch.split(self.train_ids, self.batch_size)
        require_finite_outputs(self.model, ((ids_B, self._logits(ids_B)) for ids_B in ids))

    def _logits(self, ids_B: Tensor) -> Tensor:
        stored_B = self.dataset.examples(ids_B)
        return call_model(self.model, to_model_input(stored_B, self.inputs, self.device))


def begins_trained(config: RunConfig) -> bool:
    """Whether theta* begins with weights that have been trained, given or the model's own."""
    return config.initialization.weights_sha256 is not None or comes_trained(config.model)


def num_initialization_steps(config: InitializationConfig, num_train: int) -> int:
    """Optimizer steps: `steps` where it is set, else `epochs` of full batches, rounded up."""
    if config.steps is not None:
        return config.steps
    return num_steps_of(config.epochs, num_train, config.batch_size)


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
    """Train a random model into the initial weights theta*, the start of all learners.

    A constant learning rate and no augmentation, for the chaotic first steps only (LiPT, section
    3.1). RunFailedError if the loss is not finite.
    """
    model.to(device)
    num_steps = num_initialization_steps(config, len(train_ids))
    epochs = _Epochs(
        model, dataset, train_ids, inputs, device, config.batch_size, "initialization", seed
    )
    optimizer = optimizer_of(dataset.target)
    sgd = optimizer(model, lr=config.learning_rate, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY)
    first = copy_to_cpu(model.state_dict())
    with (
        seeded_generators(derive_seed(seed, "initialization-layers"), device),
        computation(cpu_threads),
    ):
        losses = chain.from_iterable(map(epochs.losses, count()))
        for step, loss in enumerate(islice(losses, num_steps), 1):
            if not math.isfinite(loss.item()):
                epochs.require_finite_at(first)
                raise RunFailedError(
                    f"the initialization diverged: the loss is {loss.item()} in step {step} "
                    f"of {num_steps}, with learning rate {config.learning_rate}. "
                    "Lower initialization.learning_rate."
                )
            sgd.step(loss)
            on_progress(step, num_steps)
    # A large model is not copied twice where nothing was trained.
    return copy_to_cpu(model.state_dict()) if num_steps else first


@dataclass(frozen=True)
class WarmUpState(KeptValue):
    """The state of a warm-up after some steps, on the CPU; without momentum at its end."""

    weights: Weights
    momentum: Weights = field(default_factory=dict)
    step: int = 0
    seconds: float = 0.0


def warm_up(
    model: nn.Module,
    dataset: Dataset,
    train_ids: Tensor,
    epochs: float,
    inputs: InputFormat,
    *,
    seed: int,
    device: torch.device,
    cpu_threads: int,
    begun: WarmUpState | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    on_epoch: Callable[[WarmUpState], object] = lambda _: None,
) -> WarmUpState:
    """Train a model on all data for some epochs: the ordinary warm-up that LiPT replaces.

    A cosine from 0.1 to 0 over all steps; images get a `mild_augmentation` (Paul et al. 2021,
    arXiv:2107.07075). Continuing from `begun`, an epoch's end, gives the same weights. SignalsError
    if the loss is not finite.
    """
    model.to(device)
    padding, flip = 0, False
    if isinstance(inputs, ImageFormat):
        padding, flip = mild_augmentation(inputs.shape)
    num_steps = num_steps_of(epochs, len(train_ids))

    def augmented(stored_B: Stored, step: int) -> Stored:
        if not padding or not isinstance(stored_B, Tensor):
            return stored_B
        generator = derive_generator(seed, "warm-up-augmentation", step)
        return crop_flip(stored_B, generator=generator, padding=padding, flip=flip)

    made = _Epochs(
        *(model, dataset, train_ids, inputs, device, BATCH_SIZE, "warm-up", seed, augmented)
    )
    sgd = Sgd(model, lr=LEARNING_RATE, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY)
    step, before, started = 0, 0.0, monotonic()
    first = copy_to_cpu(model.state_dict())
    if begun is not None:
        step, before = begun.step, begun.seconds
        model.load_state_dict(begun.weights)
        sgd.restore_momentum(begun.momentum)
    with computation(cpu_threads):
        while step < num_steps:
            epoch, loss = step // made.num_batches, torch.zeros(())
            with seeded_generators(derive_seed(seed, "warm-up-layers", epoch), device):
                for loss in islice(made.losses(epoch), num_steps - step):
                    cosine = math.cos(math.pi * step / num_steps)
                    sgd.step(loss, LEARNING_RATE * (1 + cosine) / 2)
                    step += 1
                    on_progress(step, num_steps)
            # Once an epoch, since reading the loss stalls an accelerator's queue.
            if not math.isfinite(loss.item()):
                made.require_finite_at(first)
                raise SignalsError(
                    f"the warm-up diverged: the loss is {loss.item()} in step {step} of "
                    f"{num_steps}. Choose on the run's own model, without `pretraining`."
                )
            if step < num_steps:
                seconds = before + monotonic() - started
                weights, momentum = copy_to_cpu(model.state_dict()), copy_to_cpu(sgd.momentum())
                on_epoch(WarmUpState(weights, momentum, step, seconds))
    return WarmUpState(copy_to_cpu(model.state_dict()), {}, step, before + monotonic() - started)
