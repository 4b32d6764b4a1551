"""One learner: theta* and a shard in, a trained and pruned model out.

The result depends only on the task, the initial weights and the shard, to the last bit on a CPU:
threads are pinned, global generators are restored, and every draw comes from the task's seed.

A *step* is one pass over the shard's M minibatches (the authors' code calls K selection epochs).
With M = 1 (the paper's CIFAR-10 setting) it is one minibatch.

A trained learner is pruned once, to a density: the share of weights KEPT.

Shapes: N examples of the shard, B of a minibatch, C classes.
Source: LiPT (Ro et al. 2023), section 3.3 and Appendix D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

import torch
from torch import Tensor, nn

from lipt.common.computation import computation
from lipt.common.config.run_config import AugmentationMethod, Precision, PruningMethod
from lipt.common.determinism import derive_generator, derive_seed, seeded_generators
from lipt.common.errors import ConfigError, DivergedError, LearnerStoppedError
from lipt.common.observability.tracing import span
from lipt.common.states import DivergedQuantity, Divergence
from lipt.common.tensor_files import Weights, check_specs, copy_to_cpu, non_finite, specs_of
from lipt.core.pretraining.augmentation import augment
from lipt.core.pretraining.pruning import prunable_parameters, prune
from lipt.core.pretraining.training import ForwardPass, optimizer_of, require_finite_outputs
from lipt.core.tasks import LearnerTask
from lipt.data.inputs.model_input import Stored, pinned, rows_of, stored_on
from lipt.data.inputs.specs import spec_of
from lipt.data.parallel import prefetched
from lipt.data.shard import EncodedImages, Shard
from lipt.models.head import freeze, frozen_names
from lipt.models.registry import OwnModel, build_model, lay_out, memory_format

Examples = Stored | EncodedImages


@dataclass(frozen=True)
class TrainedLearner:
    """A trained learner, ready for submission.

    weights: the state_dict after pruning, without frozen tensors; contiguous, on the CPU.
    loss: mean loss of the last pass's augmented examples, before pruning.
    train_seconds: of training and pruning; waited_seconds: of these, waiting for minibatches.
    snapshots: the state, not pruned, after each of the task's `snapshot_steps`.
    """

    weights: Weights
    loss: float
    train_seconds: float
    snapshots: tuple[Weights, ...] = ()
    waited_seconds: float = 0.0


def train_learner(
    task: LearnerTask,
    initial: Weights,
    shard: Shard,
    *,
    device: torch.device,
    allowed_modules: Collection[str] = (),
    own_model: OwnModel | None = None,
    on_step: Callable[[int, float], None],
    should_stop: Callable[[], bool],
    ids: Tensor | None = None,
) -> TrainedLearner:
    """Train a copy of theta* on a shard for K steps and prune it.

    `own_model` is a live one, in place of the task's by name. `on_step` gets each step's number,
    from 1, and its mean loss; `should_stop` is called before each minibatch. `ids` are the
    examples' in messages; None for their positions in the shard.

    Raises:
        DataError: an image of the shard, as `open_shard` checked it, cannot be decoded.
        WeightsError: the initial weights are not the task's.
        DivergedError: the loss or the weights are not finite.
        SignalsError: the model's outputs were not finite before any training.
        LearnerStoppedError: `should_stop` returned true.
    """
    model = build_model(
        own_model or task.model,
        num_classes=task.num_classes,
        inputs=spec_of(task.inputs),
        seed=task.seed,
        allowed_modules=allowed_modules,
        adapters=task.adapters,
    )
    check_specs(specs_of(initial), specs_of(model.state_dict()))
    model.load_state_dict(initial)
    frozen = frozen_names(model, task.learners.frozen)
    freeze(model, frozen)
    forward = compute_mode(task, device)
    snapshots: list[Weights] = []

    def after_step(step: int, loss: float) -> None:
        if step in task.learners.snapshot_steps:
            _require_finite(task, model.state_dict(), DivergedQuantity.WEIGHTS, step)
            snapshots.append(_trained(model, frozen))
        on_step(step, loss)

    started = perf_counter()
    with (
        seeded_generators(derive_seed(task.seed, "learner-layers"), device),
        computation(task.learners.cpu_threads),
    ):
        lay_out(model, task.model, device)
        targets_N = shard.targets_N.to(device)
        examples = shard.examples
        if not isinstance(examples, EncodedImages):
            examples = stored_on(examples, device)
        with span("train", model=task.model, num_steps=task.learners.num_steps) as training:
            try:
                loss, waited_seconds = train_on_shard(
                    *(model, task, examples, targets_N, forward),
                    on_step=after_step,
                    should_stop=should_stop,
                )
            except DivergedError:
                model.load_state_dict(initial)
                require_finite_outputs(model, _untrained(model, task, examples, forward, ids))
                raise
            training.note(loss=loss, waited_seconds=waited_seconds)
        with span("prune", method=task.pruning_method.value, density=task.density):
            weights = _pruned(model, task, examples, targets_N, forward, frozen)
    seconds = perf_counter() - started
    return TrainedLearner(weights, loss, seconds, tuple(snapshots), waited_seconds)


def _untrained(
    model: nn.Module,
    task: LearnerTask,
    examples: Examples,
    forward: ForwardPass,
    ids: Tensor | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    size = task.learners.num_minibatches * task.learners.batch_size
    for rows_B in torch.split(torch.arange(size), task.learners.batch_size):
        logits_BC = forward(model, examples_at(examples, rows_B))
        yield rows_B if ids is None else ids[rows_B], logits_BC


def compute_mode(task: LearnerTask, device: torch.device) -> ForwardPass:
    """The forward pass on a device; AUTO is bfloat16 where CUDA supports it, else float32."""
    precision = task.learners.precision
    on_cuda = device.type == "cuda"
    supported = on_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision is Precision.BFLOAT16 and on_cuda and not supported:
        raise ConfigError(
            f"learners.precision is bfloat16, but {torch.cuda.get_device_name(device)} does not "
            "compute in it. Set learners.precision to auto or float32."
        )
    bfloat16 = precision is Precision.BFLOAT16 or (precision is Precision.AUTO and supported)
    return ForwardPass(task.inputs, task.target, device, memory_format(task.model), bfloat16)


def train_on_shard(
    model: nn.Module,
    task: LearnerTask,
    examples: Examples,
    targets_N: Tensor,
    forward: ForwardPass,
    *,
    on_step: Callable[[int, float], None],
    should_stop: Callable[[], bool],
) -> tuple[float, float]:
    """Train in place; returns the last pass's mean loss and the seconds spent on waiting."""
    learners = task.learners
    sgd = optimizer_of(task.target, learners.optimizer)(
        model,
        lr=learners.learning_rate,
        momentum=learners.momentum,
        weight_decay=learners.weight_decay,
    )
    per_pass = math.ceil(len(targets_N) / learners.batch_size)
    loss, waited_seconds = math.nan, 0.0
    with minibatches(task, examples, targets_N, forward.device) as batches:
        for step in range(1, learners.num_steps + 1):
            # Summed on the device: reading each minibatch's loss would stall it.
            loss_sum = torch.zeros((), device=forward.device)
            for batch in islice(batches, per_pass):
                if should_stop():
                    raise LearnerStoppedError(
                        f"the learner was stopped in step {step} of {learners.num_steps}. "
                        "Its assignment can be done again from the start."
                    )
                parts = learners.accumulation_steps
                batch_loss = sgd.step(
                    forward.loss_parts(model, batch.examples_B, batch.targets_B, parts)
                )
                loss_sum += batch_loss * len(batch.targets_B)
                waited_seconds += batch.waited_seconds
            loss = float(loss_sum) / len(targets_N)
            if not math.isfinite(loss):
                raise _diverged(task, DivergedQuantity.LOSS, step)
            on_step(step, loss)
    return loss, waited_seconds


@dataclass(frozen=True)
class Minibatch:
    """Augmented examples and their targets, on the device, and the seconds training waited."""

    examples_B: Stored
    targets_B: Tensor
    waited_seconds: float


# Rows of a minibatch, and the generator that augments them.
_Part = tuple[Tensor, torch.Generator]


@contextmanager
def minibatches(
    task: LearnerTask, examples: Examples, targets_N: Tensor, device: torch.device
) -> Iterator[Iterator[Minibatch]]:
    """Minibatches of all passes, in order, read ahead by a thread without changing any draw."""
    on_cpu, encoded = device.type == "cpu", isinstance(examples, EncodedImages)
    augments = (
        isinstance(examples, Tensor) and task.augmentation.method is not AugmentationMethod.NONE
    )

    def read(part: _Part) -> tuple[_Part, Stored]:
        rows_B, draws = part
        examples_B = examples_at(examples, rows_B)
        if on_cpu:
            examples_B = augment(examples_B, task.augmentation, draws)
        elif encoded:
            examples_B = pinned(examples_B)
        return part, examples_B

    def ready(reads: Iterator[tuple[_Part, Stored]]) -> Iterator[Minibatch]:
        asked = perf_counter()
        for (rows_B, draws), examples_B in reads:
            waited = perf_counter() - asked
            if not on_cpu:
                there_B = stored_on(examples_B, device, non_blocking=True)
                examples_B = augment(there_B, task.augmentation, draws)  # noqa: PLW2901
            yield Minibatch(examples_B, targets_N[rows_B.to(device)], waited)
            asked = perf_counter()

    parts = _parts(task, len(targets_N))
    ahead = encoded or (on_cpu and augments)
    with prefetched(read, parts) if ahead else nullcontext(map(read, parts)) as reads:
        yield ready(reads)


def _parts(task: LearnerTask, num_examples: int) -> Iterator[_Part]:
    for step in range(task.learners.num_steps):
        order = derive_generator(task.seed, "learner-order", step)
        draws = derive_generator(task.seed, "learner-augmentation", step)
        order_N = torch.randperm(num_examples, generator=order)
        for rows_B in torch.split(order_N, task.learners.batch_size):
            yield rows_B, draws


def examples_at(examples: Examples, rows_B: Tensor) -> Stored:
    """Some examples, by row numbers on the CPU; decoded images are on the CPU, too."""
    if isinstance(examples, EncodedImages):
        return examples.rows(rows_B)
    first = examples if isinstance(examples, Tensor) else next(iter(examples.values()))
    return rows_of(examples, rows_B.to(first.device))


def _diverged(task: LearnerTask, quantity: DivergedQuantity, step: int) -> DivergedError:
    learners = task.learners
    divergence = Divergence(quantity, step, learners.num_steps)
    error = DivergedError(
        f"the learner diverged: {divergence}, with learning rate {learners.learning_rate} and "
        f"precision {learners.precision}. Lower learners.learning_rate, or set "
        "learners.precision to float32."
    )
    error.divergence = divergence
    return error


def _pruned(
    model: nn.Module,
    task: LearnerTask,
    examples: Examples,
    targets_N: Tensor,
    forward: ForwardPass,
    frozen: frozenset[str],
) -> Weights:
    parameters = prunable_parameters(model, frozen)
    num_steps, slopes = task.learners.num_steps, Weights()
    _require_finite(task, model.state_dict(), DivergedQuantity.WEIGHTS, num_steps)
    if parameters and task.pruning_method is PruningMethod.SNIP:
        # For the shard's first minibatch; batch-norm statistics are kept.
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        size = task.learners.batch_size
        examples_B = examples_at(examples, torch.arange(size))
        loss = forward.mean_loss(model, examples_B, targets_N[:size])
        parts = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        slopes = {name: part.cpu() for name, part in zip(parameters, parts, strict=True)}
        _require_finite(task, slopes, DivergedQuantity.GRADIENT, num_steps)
    if parameters:
        pruned = prune(
            task.pruning_method,
            {name: parameter.detach().cpu() for name, parameter in parameters.items()},
            task.density,
            slopes=slopes,
            generator=derive_generator(task.seed, "learner-pruning"),
        )
        with torch.no_grad():
            # In the model, so that a tensor with two names in its state is pruned under both.
            for name, parameter in parameters.items():
                parameter.copy_(pruned[name])
    return _trained(model, frozen)


def _trained(model: nn.Module, frozen: frozenset[str]) -> Weights:
    state = model.state_dict()
    return copy_to_cpu({name: tensor for name, tensor in state.items() if name not in frozen})


def _require_finite(
    task: LearnerTask, tensors: Weights, quantity: DivergedQuantity, step: int
) -> None:
    if non_finite(tensors):
        raise _diverged(task, quantity, step)
