"""Ordinary warm-up: what LiPT replaces, the run's model trained for some epochs on all the data.

SGD with momentum 0.9, weight decay 5e-4, batches of 256, a cosine from 0.1 to 0 over all steps;
images are cropped by up to 4 pixels and flipped. Every epoch draws from generators of its own, so
that training that goes on from an epoch's end comes to the same weights.

Source: the recipe that Paul et al. 2021 (arXiv:2107.07075) and Ro et al. 2023 compare with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

import torch
from torch import Tensor, nn

from lipt.common.data import Dataset
from lipt.common.determinism import derive_generator, derive_seed, pinned_kernels, seeded_generators
from lipt.common.errors import SignalsError
from lipt.common.images.crop_flip import crop_flip
from lipt.common.inputs.model_input import Stored, to_model_input
from lipt.common.inputs.specs import InputFormat, call_model
from lipt.common.weights.specs import Weights, copy_to_cpu

BATCH_SIZE = 256
LEARNING_RATE = 0.1
_MOMENTUM = 0.9
_WEIGHT_DECAY = 5e-4


@dataclass(frozen=True)
class Warmed:
    """How far a warm-up is.

    weights: the model's whole state dict, on the CPU.
    momentum: the optimizer's buffers by the parameter's name; none at the end.
    step: optimizer steps so far.
    seconds: that they have taken.
    """

    weights: Weights
    momentum: Weights = field(default_factory=dict)
    step: int = 0
    seconds: float = 0.0


def num_warm_up_steps(epochs: float, num_train: int) -> int:
    """How many optimizer steps so many epochs of full batches are, rounded up."""
    # 0.7 x 10 is 7.000000000000001.
    return math.ceil(epochs * _batches_per_epoch(num_train) - 1e-9)


def learning_rate_at(step: int, num_steps: int) -> float:
    """Of a step counted from 0: a cosine that reaches 0 after the last."""
    return LEARNING_RATE * (1 + math.cos(math.pi * step / num_steps)) / 2


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
    begun: Warmed | None = None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    on_epoch: Callable[[Warmed], None] = lambda _: None,
) -> Warmed:
    """Train a model; the same arguments give the same weights on the same kind of device.

    Args:
        model: with the weights to start from; moved to `device` and trained in place, but for
            what is frozen. Its training flags are kept.
        dataset: where the examples come from.
        train_ids: the int64 ids to train on.
        epochs: how long; 0 leaves the weights as they are.
        inputs: what the model is given of them.
        seed: order, augmentation, and what layers such as dropout draw come from it.
        device: where to train.
        cpu_threads: a backward pass's sums depend on it.
        begun: what `on_epoch` got last, to go on from there.
        on_progress: called after each step with the steps done and their number.
        on_epoch: called at the end of every epoch but the last.

    Raises:
        SignalsError: the loss is no longer finite.
    """
    model.to(device)
    num_steps = num_warm_up_steps(epochs, len(train_ids))
    per_epoch = _batches_per_epoch(len(train_ids))
    optimizer = torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=LEARNING_RATE,
        momentum=_MOMENTUM,
        weight_decay=_WEIGHT_DECAY,
    )
    step, before, started = 0, 0.0, monotonic()
    if begun is not None:
        step, before = begun.step, begun.seconds
        model.load_state_dict(begun.weights)
        _restore_momentum(optimizer, model, begun.momentum)
    with pinned_kernels(cpu_threads):
        while step < num_steps:
            epoch, loss = step // per_epoch, torch.zeros(())
            with seeded_generators(derive_seed(seed, "warm-up-layers", epoch), device):
                for ids_B in _batches(train_ids, seed, epoch)[: num_steps - step]:
                    for group in optimizer.param_groups:
                        group["lr"] = learning_rate_at(step, num_steps)
                    stored = _augmented(dataset.examples(ids_B), seed, step)
                    inputs_B = to_model_input(stored, inputs, device)
                    outputs_B = call_model(model, inputs_B)
                    targets_B = dataset.targets_N[ids_B].to(device)
                    loss = dataset.target.mean_loss(outputs_B, targets_B)
                    optimizer.zero_grad()
                    torch.autograd.backward(loss)
                    optimizer.step()
                    step += 1
                    on_progress(step, num_steps)
            # Once an epoch: an accelerator has a queue of work that must not run dry.
            if not math.isfinite(loss.item()):
                raise SignalsError(
                    f"the warm-up diverged: the loss is {loss.item()} in step {step} of "
                    f"{num_steps}. Choose on the run's own model, without `pretraining`."
                )
            if step < num_steps:
                seconds = before + monotonic() - started
                weights = copy_to_cpu(model.state_dict())
                on_epoch(Warmed(weights, _momentum(optimizer, model), step, seconds))
    return Warmed(copy_to_cpu(model.state_dict()), {}, step, before + monotonic() - started)


def _batches_per_epoch(num_train: int) -> int:
    # A set smaller than one batch is one batch.
    return max(1, num_train // BATCH_SIZE)


def _batches(train_ids: Tensor, seed: int, epoch: int) -> list[Tensor]:
    """An epoch's full batches; its last, smaller one is left out."""
    generator = derive_generator(seed, "warm-up-order", epoch)
    order_N = torch.randperm(len(train_ids), generator=generator)
    return list(torch.split(train_ids[order_N], BATCH_SIZE)[: _batches_per_epoch(len(train_ids))])


def _augmented(examples_B: Stored, seed: int, step: int) -> Stored:
    # What is no image has no augmentation.
    if not isinstance(examples_B, Tensor) or examples_B.ndim != 4:
        return examples_B
    return crop_flip(examples_B, generator=derive_generator(seed, "warm-up-augmentation", step))


def _momentum(optimizer: torch.optim.SGD, model: nn.Module) -> Weights:
    buffers = {
        name: optimizer.state.get(parameter, {}).get("momentum_buffer")
        for name, parameter in model.named_parameters()
    }
    return copy_to_cpu({name: value for name, value in buffers.items() if value is not None})


def _restore_momentum(optimizer: torch.optim.SGD, model: nn.Module, momentum: Weights) -> None:
    for name, parameter in model.named_parameters():
        if name in momentum:
            # In the parameter's memory format.
            buffer = torch.empty_like(parameter).copy_(momentum[name])
            optimizer.state[parameter]["momentum_buffer"] = buffer
