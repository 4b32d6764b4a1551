"""One learner: theta* and a shard in, a trained and pruned model out.

The result depends on the task, the initial weights and the shard alone, to the
last bit on a CPU: threads are pinned, the global generators are left as they
were, and every draw comes from the task's seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipt.common.config.tasks import LearnerTask
from lipt.common.data.shard import EncodedImages, EncodedShard, Shard
from lipt.common.determinism import derive_generator, derive_seed, pinned_kernels, seeded_generators
from lipt.common.errors import DataError
from lipt.common.inputs.model_input import Stored, num_stored, stored_on
from lipt.common.inputs.specs import spec_of
from lipt.common.models import build_model, lay_out
from lipt.common.models.head import freeze, frozen_names
from lipt.common.observability.tracing import span
from lipt.common.weights.files import non_finite
from lipt.common.weights.specs import Weights, check_specs, copy_to_cpu, specs_of
from lipt.core.learner.minibatches import BatchTimes, Examples, examples_at
from lipt.core.learner.pruning import PruningInputs, prunable_parameters, prune
from lipt.core.learner.training import ComputeMode, compute_mode, diverged, train_on_shard


@dataclass(frozen=True)
class LearnerResult:
    """A learner that is ready to be submitted.

    weights: the state_dict after pruning, without what is frozen; contiguous, on the CPU.
    loss: mean loss of the last pass's augmented examples, before pruning.
    train_seconds: wall-clock time of training and pruning.
    waited_seconds: for how much of it training waited for minibatches that were not ready.
    snapshots: the same after each of the task's `snapshot_steps`, the last of which is the last
        step; not pruned.
    """

    weights: Weights
    loss: float
    train_seconds: float
    snapshots: tuple[Weights, ...] = ()
    waited_seconds: float = 0.0


def train_learner(
    task: LearnerTask,
    initial: Weights,
    shard: Shard | EncodedShard,
    *,
    device: torch.device,
    allowed_modules: Collection[str] = (),
    on_step: Callable[[int, float], None],
    should_stop: Callable[[], bool],
) -> LearnerResult:
    """Train a copy of theta* on a shard for K steps and prune it.

    A step is one pass over the shard's M minibatches. Settings that belong to the
    process (threads, cuDNN's algorithms, global generators) are changed for the
    time of the call, so train one learner at a time in a process.

    Args:
        task: the model, how to train and how to prune it, and the seed.
        initial: theta*, a full state_dict. Not modified.
        shard: M x B examples, and their targets. What is encoded is decoded meanwhile.
        device: where to train; one that `resolve_device` gave.
        allowed_modules: modules that model factories may be imported from.
        on_step: called after each step with its number from 1 and its mean loss.
        should_stop: asked before each minibatch.

    Returns:
        The pruned weights and how training went.

    Raises:
        WeightsError: `initial` has other names, shapes or dtypes than the model.
        DataError: the shard's size, examples or targets are not the task's, or an image of it
            cannot be decoded.
        ConfigError: the density is outside (0, 1], or the device lacks the precision.
        LearnerStoppedError: `should_stop` said so.
        LearnerDivergedError: the loss or the weights are not finite.

    Source: LiPT (Ro et al. 2023), section 3.3.
    """
    _check_shard(task, shard)
    model = build_model(
        task.model,
        num_classes=task.num_classes,
        inputs=spec_of(task.inputs),
        seed=task.seed,
        allowed_modules=allowed_modules,
    )
    check_specs(specs_of(initial), specs_of(model.state_dict()))
    model.load_state_dict(initial)
    frozen = frozen_names(model, task.learners.frozen)
    freeze(model, frozen)
    mode = compute_mode(task, device)
    snapshots: list[Weights] = []

    def after_step(step: int, loss: float) -> None:
        if step in task.learners.snapshot_steps:
            _require_finite(task, model.state_dict(), "weights", step)
            snapshots.append(_trained(model, frozen))
        on_step(step, loss)

    waited_seconds = 0.0

    def after_batch(times: BatchTimes, _ended: float) -> None:
        nonlocal waited_seconds
        waited_seconds += times.waited

    started = time.perf_counter()
    with (
        seeded_generators(derive_seed(task.seed, "learner-layers"), device),
        pinned_kernels(task.learners.cpu_threads),
    ):
        lay_out(model, task.model, device)
        examples, targets_N = _examples_on(shard, device), shard.targets_N.to(device)
        with span("train", model=task.model, num_steps=task.learners.num_steps) as training:
            loss = train_on_shard(
                model,
                task,
                examples,
                targets_N,
                mode,
                on_step=after_step,
                should_stop=should_stop,
                on_batch=after_batch,
            )
            training.note(loss=loss, waited_seconds=waited_seconds)
        with span("prune", method=task.pruning_method.value, density=task.density):
            weights = _pruned(model, task, examples, targets_N, mode, frozen)
    seconds = time.perf_counter() - started
    return LearnerResult(weights, loss, seconds, tuple(snapshots), waited_seconds)


def _examples_on(shard: Shard | EncodedShard, device: torch.device) -> Examples:
    """What is encoded goes there minibatch by minibatch, and all else at once."""
    if isinstance(shard, EncodedShard):
        return shard.examples
    return stored_on(shard.examples, device)


def _check_shard(task: LearnerTask, shard: Shard | EncodedShard) -> None:
    targets_N, learners = shard.targets_N, task.learners
    found = shard.examples
    num_found = len(found) if isinstance(found, EncodedImages) else num_stored(found)
    num_examples = learners.num_minibatches * learners.batch_size
    if not len(targets_N) == num_found == num_examples:
        raise DataError(
            f"the shard has {num_found} examples and {len(targets_N)} targets, "
            f"but the learner trains on {learners.num_minibatches} minibatches of "
            f"{learners.batch_size} examples. Have the shard made again with the run's "
            "configuration."
        )
    if task.other_target is not None:
        return
    lowest, highest = int(targets_N.min()), int(targets_N.max())
    if lowest < 0 or highest >= task.num_classes:
        raise DataError(
            f"the shard's labels are {lowest}..{highest}, but the model has the "
            f"{task.num_classes} classes 0..{task.num_classes - 1}. "
            "Have the shard made again from the run's data set."
        )


def _pruned(
    model: nn.Module,
    task: LearnerTask,
    examples: Examples,
    targets_N: Tensor,
    mode: ComputeMode,
    frozen: frozenset[str],
) -> Weights:
    """What was trained, on the CPU, after pruning it in place, all of it finite."""
    parameters = prunable_parameters(model, frozen)
    num_steps = task.learners.num_steps

    def gradients() -> Weights:
        size = task.learners.batch_size
        examples_B, targets_B = examples_at(examples, torch.arange(size)), targets_N[:size]
        loss_gradients = _gradients(model, task, examples_B, targets_B, mode, parameters)
        _require_finite(task, loss_gradients, "gradient", num_steps)
        return loss_gradients

    _require_finite(task, model.state_dict(), "weights", num_steps)
    if not parameters:
        return _trained(model, frozen)
    inputs = PruningInputs(
        weights={name: parameter.detach().cpu() for name, parameter in parameters.items()},
        gradients=gradients,
        generator=derive_generator(task.seed, "learner-pruning"),
    )
    pruned = prune(task.pruning_method, inputs, task.density)
    with torch.no_grad():
        # In the model, so that a tensor with two names in its state is pruned under both.
        for name, parameter in parameters.items():
            parameter.copy_(pruned[name])
    return _trained(model, frozen)


def _trained(model: nn.Module, frozen: frozenset[str]) -> Weights:
    """A copy of what can differ from theta*."""
    state = model.state_dict()
    return copy_to_cpu({name: tensor for name, tensor in state.items() if name not in frozen})


def _gradients(
    model: nn.Module,
    task: LearnerTask,
    examples_B: Stored,
    targets_B: Tensor,
    mode: ComputeMode,
    parameters: dict[str, nn.Parameter],
) -> Weights:
    """The loss's gradient for each prunable tensor, on a batch without augmentation.

    Batch statistics normalize, as in training; the running ones stay as they are.
    """
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    loss = mode.loss(model, examples_B, targets_B, task)
    gradients = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    return {name: part.cpu() for name, part in zip(parameters, gradients, strict=True)}


def _require_finite(task: LearnerTask, tensors: Weights, what: str, step: int) -> None:
    if non_finite(tensors):
        raise diverged(task, f"{what} not finite after step {step}")
