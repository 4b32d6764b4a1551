"""Training: SGD, and the two trainings on all of the data: initial weights and warm-ups.

Shapes: N examples of the training split, B of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, count, islice
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lipt.common.computation import computation
from lipt.common.config.run_config import InitializationConfig
from lipt.common.data import Dataset
from lipt.common.determinism import derive_generator, derive_seed, seeded_generators
from lipt.common.errors import ConfigError, RunFailedError, SignalsError
from lipt.common.images.formats import crop_flip, mild_augmentation
from lipt.common.inputs.model_input import Stored, in_layout, num_stored, to_model_input
from lipt.common.inputs.specs import ImageFormat, InputFormat, Inputs, call_model
from lipt.common.models.head import evaluation_mode
from lipt.common.signals.passes import require_finite_rows
from lipt.common.targets.values import Target
from lipt.common.weights.files import KeptValue, Weights, copy_to_cpu

_MOMENTUM, _WEIGHT_DECAY = 0.9, 5e-4
# For ordinary warm-ups.
BATCH_SIZE, LEARNING_RATE = 256, 0.1


def trained_outputs(model: Callable[..., Any], inputs_B: Inputs) -> Tensor:
    """A model's logits; ConfigError for batch norm of one value in a model in training."""
    try:
        return call_model(model, inputs_B)
    except ConfigError as error:
        layers = model.modules() if isinstance(model, nn.Module) else ()
        alone = num_stored(inputs_B) == 1 and isinstance(error.__cause__, ValueError)
        if not alone or not any(isinstance(layer, _BatchNorm) for layer in layers):
            raise
        raise ConfigError(
            "the model's batch norm has no variance in a batch of one example. Train on 2 examples "
            "or more, in batches of 2 or more, or use a model without batch norm."
        ) from error


@dataclass(frozen=True)
class ForwardPass:
    """From stored examples to logits, in training and evaluation.

    memory_format: of the model's inputs. bfloat16: whether it runs under bfloat16 autocast.
    """

    inputs: InputFormat
    target: Target
    device: torch.device
    memory_format: torch.memory_format
    bfloat16: bool

    def __call__(self, model: Callable[..., Any], examples_B: Stored) -> Tensor:
        """The logits, B x C, of stored examples on any device."""
        inputs_B = in_layout(
            to_model_input(examples_B, self.inputs, self.device), self.memory_format
        )
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            return trained_outputs(model, inputs_B)

    def mean_loss(self, model: nn.Module, examples_B: Stored, targets_B: Tensor) -> Tensor:
        return self.target.mean_loss(self(model, examples_B), targets_B)


class Sgd:
    """SGD with momentum and `torch.optim.SGD`'s options; frozen parameters stay.

    A larger gradient is scaled down to the norm `max_norm`, over all parameters; with 0, none is.
    """

    def __init__(self, model: nn.Module, *, max_norm: float = 0.0, **options: Any) -> None:
        self._model, self._max_norm = model, max_norm
        self._optimizer = torch.optim.SGD(model.parameters(), **options)

    def step(self, loss: Tensor, learning_rate: float | None = None) -> None:
        """Take a step on a loss (0-d), by another learning rate if given."""
        if learning_rate is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
        self._optimizer.zero_grad()
        torch.autograd.backward(loss)
        if self._max_norm:
            nn.utils.clip_grad_norm_(self._model.parameters(), self._max_norm)
        self._optimizer.step()

    def momentum(self) -> Weights:
        """The momentum buffers by the parameter's name; empty before the first step."""
        state = self._optimizer.state
        return {
            name: state[parameter]["momentum_buffer"]
            for name, parameter in self._model.named_parameters()
            if state.get(parameter, {}).get("momentum_buffer") is not None
        }

    def restore_momentum(self, momentum: Mapping[str, Tensor]) -> None:
        """Continue with buffers that `momentum` returned."""
        for name, parameter in self._model.named_parameters():
            if name in momentum:
                # In the parameter's memory format.
                buffer = torch.empty_like(parameter).copy_(momentum[name])
                self._optimizer.state[parameter]["momentum_buffer"] = buffer


def require_finite_outputs(model: nn.Module, outputs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Refuse examples on which a model is not finite before any training: no rate helps.

    `outputs` yields ids and their logits, computed on demand in evaluation mode.
    """
    ids, finite = list[Tensor](), list[Tensor]()
    with evaluation_mode(model), torch.inference_mode():
        for ids_B, logits_BC in outputs:
            ids.append(ids_B)
            finite.append(logits_BC.isfinite().all(dim=-1))
    remedy = "It was not trained yet, so no learning rate helps."
    require_finite_rows(torch.cat(finite), torch.cat(ids), "outputs", remedy=remedy)


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
    sgd = Sgd(model, lr=config.learning_rate, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY)
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
    return copy_to_cpu(model.state_dict())


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
