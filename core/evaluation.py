"""Evaluation: the score of weights on the validation split, by which the soup decides.

Batch-norm statistics are estimated anew first, on training images, so that they fit the weights: a
learner after K = 10 steps, and any interpolation of two, has running statistics of weights that it
no longer has. Measured on CIFAR-10 with a small ResNet: learners 14.9% with them and 22.7% once
estimated again, the soup 20.8% and 26.6%.

Scores are counted, not averaged over batches: equal predictions are equal scores whatever the batch
size. Weights are scored one at a time, on a CPU several at a time with a thread each, so that
neither the number of threads nor the free memory decides a bit.

Shapes: N examples, M for batch norm, B of them in a batch, T outputs, D features.
Source: Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and Better Generalization"
(arXiv:1803.05407), section 3.1.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import pinned_kernels
from lipt.common.errors import ConfigError
from lipt.common.inputs.model_input import (
    Stored,
    num_stored,
    split_evenly,
    split_stored,
    to_model_input,
)
from lipt.common.inputs.specs import ImageSpec, InputFormat, Inputs, InputSpec, call_model
from lipt.common.models import find_head, forward_with_features
from lipt.common.models.head import evaluation_mode, head_names
from lipt.common.targets.values import Target
from lipt.common.weights.specs import Weights, copy_to_cpu

# Opens weights: they are on disk, or mixed as they are read. Each access makes a tensor.
OpenWeights = Callable[[], Mapping[str, Tensor]]


def has_batch_norm(model: nn.Module, frozen: Collection[str] = ()) -> bool:
    """Whether the model keeps statistics that can be estimated again, besides frozen ones."""
    return bool(_tracking(model, frozen))


@torch.no_grad()
def reestimate_batch_norm(
    model: nn.Module, batches: Iterable[Inputs], frozen: Collection[str] = ()
) -> None:
    """Replace running statistics by those of these inputs, in one pass.

    Every batch weighs as many shares as it has examples, of which each channel needs at least two
    values. Batch-norm layers alone are in training mode meanwhile, so dropout stays off.
    """
    layers = _tracking(model, frozen)
    if not layers:
        return
    momentum = {layer: layer.momentum for layer in layers}
    num_seen = 0
    with evaluation_mode(model):
        for layer in layers:
            layer.reset_running_stats()
            layer.train()
        try:
            for batch in batches:
                size = num_stored(batch)
                num_seen += size
                for layer in layers:
                    layer.momentum = size / num_seen
                call_model(model, batch)
        finally:
            for layer in layers:
                layer.momentum = momentum[layer]


def batch_norm_statistics(model: nn.Module, frozen: Collection[str] = ()) -> Weights:
    """Copies of running statistics on the CPU, by all of their names in the state dict."""
    return copy_to_cpu(
        {
            name: buffer
            for prefix, layer in model.named_modules(remove_duplicate=False)
            if isinstance(layer, _BatchNorm)
            for name, buffer in layer.named_buffers(prefix, recurse=False)
            if name not in frozen
        }
    )


def _tracking(model: nn.Module, frozen: Collection[str] = ()) -> list[_BatchNorm]:
    return [
        module
        for prefix, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        and module.running_mean is not None
        and (f"{prefix}.running_mean" if prefix else "running_mean") not in frozen
    ]


def batch_norm_inputs(
    examples_M: Stored, inputs: InputFormat, device: torch.device | str, *, batch_size: int
) -> Iterator[Inputs]:
    """Model inputs to estimate batch-norm statistics on, in even parts of at most `batch_size`."""
    for examples_B in _even_parts(examples_M, batch_size):
        yield to_model_input(examples_B, inputs, device)


def _even_parts(examples_M: Stored, batch_size: int) -> Iterator[Stored]:
    # A last part of a single example would have no variance.
    return split_evenly(examples_M, -(-num_stored(examples_M) // batch_size))


def load_with_statistics(
    model: nn.Module,
    weights: Weights,
    known: Weights | None,
    inputs: Callable[[], Iterable[Inputs]] | None,
    frozen: Collection[str] = (),
) -> Weights:
    """Load weights with statistics that fit them: known ones, or else estimated on `inputs`.

    Returns:
        The statistics, for the next time that the same weights are loaded; empty where `inputs` is
        None or the model has none.
    """
    model.load_state_dict({**weights, **(known or {})})
    if known or inputs is None or not has_batch_norm(model, frozen):
        return known or {}
    reestimate_batch_norm(model, inputs(), frozen)
    return batch_norm_statistics(model, frozen)


# Inputs of the validation split, those of batch norm, and features take so much memory each.
_MOST_KEPT_BYTES = 256 * 1024**2
InputsT = TypeVar("InputsT", bound=Inputs)


class Kept(Generic[InputsT]):
    """Values of batches by their numbers, as many as fit in memory; for several threads."""

    def __init__(self) -> None:
        self._values: dict[int, InputsT] = {}
        self._num_bytes = 0
        self._lock = threading.Lock()

    def get(self, number: int, make: Callable[[], InputsT]) -> InputsT:
        """A batch's value, made where it is not kept."""
        if (found := self._values.get(number)) is not None:
            return found
        value = make()
        tensors = [value] if isinstance(value, Tensor) else value.values()
        num_bytes = sum(tensor.nbytes for tensor in tensors)
        with self._lock:
            fits = self._num_bytes + num_bytes <= _MOST_KEPT_BYTES
            if fits and number not in self._values:
                self._values[number] = value
                self._num_bytes += num_bytes
        return value


@dataclass(frozen=True)
class PreparedInputs:
    """Batches of stored examples as model inputs; the first ones, that fit in memory, are kept."""

    stored: Sequence[Stored]
    inputs: InputFormat
    device: torch.device | str
    kept: Kept[Inputs] = field(default_factory=Kept)

    def __iter__(self) -> Iterator[Inputs]:
        return (self[number] for number in range(len(self.stored)))

    def __getitem__(self, number: int) -> Inputs:
        return self.kept.get(
            number, lambda: to_model_input(self.stored[number], self.inputs, self.device)
        )


def batch_size_for(inputs: InputSpec, device: torch.device) -> int:
    """Examples per forward pass: as many as stay in a CPU's cache, or keep a GPU busy.

    On a CPU 64 of 32x32 pixels, and in proportion, within 16..1024; other examples count by
    their numbers.
    """
    if device.type != "cpu":
        return 256
    if isinstance(inputs, ImageSpec):
        size = inputs.height * inputs.width
    else:
        size = sum(math.prod(column.shape) for column in inputs.columns)
    return min(1024, max(16, 64 * 32 * 32 // size))


@dataclass(frozen=True)
class Scored:
    """The score of weights: of classes the accuracy, -infinity where they were given up.

    mended: entries that replace the weights' own, their batch-norm statistics.
    """

    accuracy: float
    mended: Weights


@dataclass(frozen=True)
class Evaluator:
    """Scores weights on the validation split, their batch-norm statistics mended first.

    Model inputs are made once, as long as they take little memory, and where the head alone differs
    between weights, the features that enter it.

    model: on `device`; takes on the weights of each call, its training flags are restored.
    targets_N: as `target` takes them.
    batch_norm_examples_M: None evaluates with the statistics that the weights came with.
    frozen: names in the state dict that are the same in all weights.
    """

    model: nn.Module
    inputs: InputFormat
    device: torch.device | str
    examples_N: Stored
    target: Target
    targets_N: Tensor
    batch_norm_examples_M: Stored | None
    batch_size: int = 128
    frozen: frozenset[str] = frozenset()

    def __call__(self, weights: Mapping[str, Tensor], floor: float = -math.inf) -> Scored:
        """Score weights; they are given up once they are certain not to be above the floor."""
        for name, tensor in self.model.state_dict().items():
            tensor.copy_(weights[name])
        mended = Weights()
        if self.batch_norm_examples_M is not None and has_batch_norm(self.model, self.frozen):
            with pinned_kernels():
                reestimate_batch_norm(self.model, self.batch_norm_batches, self.frozen)
            mended = batch_norm_statistics(self.model, self.frozen)
        return Scored(self._score(floor), mended)

    def twin(self, model: nn.Module) -> Evaluator:
        """An evaluator that may run at the same time and shares what is made once."""
        twin = replace(self, model=model)
        for name in ("batches", "batch_norm_batches", "_features", "_targets"):
            twin.__dict__[name] = getattr(self, name)
        return twin

    @torch.inference_mode()
    def _score(self, floor: float) -> float:
        if not len(self.targets_N):
            raise ConfigError(
                "accuracy over 0 examples is undefined. Hold out a larger validation.fraction."
            )
        tally, num_left = self.target.tally(), len(self.targets_N)
        with evaluation_mode(self.model), pinned_kernels():
            for number, targets_B in enumerate(self._targets):
                tally.add(self._outputs(number), targets_B)
                num_left -= len(targets_B)
                if floor > -math.inf and tally.best_possible(num_left) <= floor:
                    return -math.inf
        return tally.score()

    def _outputs(self, number: int) -> Tensor:
        if self._head is None:
            return call_model(self.model, self.batches[number])
        outputs_BT: Tensor = self._head(
            self._features.get(
                number, lambda: forward_with_features(self.model, self.batches[number])[1]
            )
        )
        return outputs_BT

    @cached_property
    def _head(self) -> nn.Linear | None:
        # The last layer where it alone differs between weights.
        if not self.frozen:
            return None
        differs = self.model.state_dict().keys() - self.frozen
        return find_head(self.model)[1] if differs == head_names(self.model) else None

    @cached_property
    def _features(self) -> Kept[Tensor]:
        return Kept()

    @cached_property
    def _targets(self) -> tuple[Tensor, ...]:
        batches = torch.split(self.targets_N, self.batch_size)
        return tuple(targets_B.to(self.device) for targets_B in batches)

    @cached_property
    def batches(self) -> PreparedInputs:
        """The validation split."""
        parts = list(split_stored(self.examples_N, self.batch_size))
        return PreparedInputs(parts, self.inputs, self.device)

    @cached_property
    def batch_norm_batches(self) -> PreparedInputs:
        """What statistics are estimated on; none where they are not."""
        examples_M = self.batch_norm_examples_M
        parts = [] if examples_M is None else list(_even_parts(examples_M, self.batch_size))
        return PreparedInputs(parts, self.inputs, self.device)


def num_evaluated_together(config: RunConfig) -> int:
    """How many weights a CPU scores at a time for a run's soup: no more than are asked for."""
    asked = max(config.learners.num_learners, config.soup.num_alphas - 1)
    return min(config.evaluation_threads, asked)


def evaluate_for_soup(
    evaluator: Evaluator, config: RunConfig, new_model: Callable[[], nn.Module]
) -> Evaluators:
    """On a CPU several evaluators, a thread each; on an accelerator one."""
    on_cpu = torch.device(evaluator.device).type == "cpu"
    number = num_evaluated_together(config) if on_cpu else 1
    return Evaluators((evaluator, *(evaluator.twin(new_model()) for _ in range(1, number))))


@dataclass(frozen=True)
class Evaluators:
    """Scores weights for a soup, as many at a time as there are evaluators, twins of each other.

    Threads that share the work of each layer wait for each other at its end, and their number
    decides the last bits. Scores of a thread for each of several weights are those of one thread.
    """

    evaluators: Sequence[Evaluator]

    def __call__(self, weights: Sequence[OpenWeights], floor: float) -> Iterator[Scored]:
        """Scores in the order of the weights; `floor` as for `Evaluator`."""
        if len(self.evaluators) == 1:
            yield from (self.evaluators[0](opened(), floor) for opened in weights)
            return
        free: SimpleQueue[Evaluator] = SimpleQueue()
        for evaluator in self.evaluators:
            free.put(evaluator)

        def score(opened: OpenWeights) -> Scored:
            evaluator = free.get()
            try:
                return evaluator(opened(), floor)
            finally:
                free.put(evaluator)

        # A thread begins with the number of threads that is pinned when it first computes.
        with pinned_kernels(1), ThreadPoolExecutor(len(self.evaluators)) as pool:
            yield from pool.map(score, weights)
