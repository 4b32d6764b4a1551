"""Evaluation: the score of weights on the validation split, by which the soup decides.

Batch-norm statistics are first estimated on training images: the running ones do not fit learners
of few steps or mixed weights. Scores do not depend on batch size, threads or memory.

Shapes: N examples, M for batch norm, B of them in a batch, T outputs, D features.
Source: Izmailov et al. 2018, "Averaging Weights" (arXiv:1803.05407), section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lipt.common.computation import computation
from lipt.common.config.run_config import RunConfig, SoupMethod
from lipt.common.tensor_files import Weights, copy_to_cpu
from lipt.data.inputs.model_input import (
    Stored,
    num_stored,
    split_evenly,
    split_stored,
    to_model_input,
)
from lipt.data.inputs.specs import ImageSpec, InputFormat, Inputs, InputSpec, call_model
from lipt.data.targets.values import Target
from lipt.models.head import evaluation_mode, find_head, forward_with_features, head_names

# Opens weights from disk, or mixes them on access. Each access makes a tensor.
OpenWeights = Callable[[], Mapping[str, Tensor]]


@torch.no_grad()
def reestimate_batch_norm(
    model: nn.Module, batches: Iterable[Inputs], frozen: Collection[str] = ()
) -> Weights:
    """Replace running statistics by the inputs' own, each batch weighted by its size.

    Returns copies of those that are not frozen, on the CPU, by all names in the state dict.
    """
    layers = [
        (prefix, layer)
        for prefix, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None
    ]
    momentum = {
        layer: layer.momentum
        for prefix, layer in layers
        if f"{prefix}.running_mean".removeprefix(".") not in frozen
    }
    if not momentum:
        return {}
    num_seen = 0
    with evaluation_mode(model):
        for layer in momentum:
            layer.reset_running_stats()
            layer.train()
        try:
            for batch in batches:
                size = num_stored(batch)
                num_seen += size
                for layer in momentum:
                    layer.momentum = size / num_seen
                call_model(model, batch)
        finally:
            for layer, own in momentum.items():
                layer.momentum = own
    buffers = (
        part for prefix, layer in layers for part in layer.named_buffers(prefix, recurse=False)
    )
    return copy_to_cpu({name: buffer for name, buffer in buffers if name not in frozen})


def batch_norm_inputs(
    examples_M: Stored, inputs: InputFormat, device: torch.device | str, *, batch_size: int
) -> Iterator[Inputs]:
    """Inputs to estimate batch-norm statistics on, in even parts of at most `batch_size`."""
    # A last part of a single example would have no variance.
    for examples_B in split_evenly(examples_M, -(-num_stored(examples_M) // batch_size)):
        yield to_model_input(examples_B, inputs, device)


def load_with_statistics(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    known: Weights | None,
    inputs: Callable[[], Iterable[Inputs]] | None,
    frozen: Collection[str] = (),
) -> Weights:
    """Load weights with known or estimated statistics; returns these, empty if there are none."""
    model.load_state_dict({**weights, **(known or {})})
    if known or inputs is None:
        return known or {}
    return reestimate_batch_norm(model, inputs(), frozen)


def batch_size_for(inputs: InputSpec, device: torch.device) -> int:
    """Examples per forward pass on a CPU: 64 images of 32x32 pixels or texts of 128 words.

    Others are in proportion. Batches of 512 texts take twice the time: their activations leave a
    CPU's cache.
    """
    if device.type != "cpu":
        return 256
    if isinstance(inputs, ImageSpec):
        size = inputs.height * inputs.width
    else:
        size = 8 * sum(math.prod(column.shape) for column in inputs.columns)
    return min(1024, max(16, 64 * 32 * 32 // size))


# Memory limit for features.
_MOST_KEPT_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class Scored:
    """The score of weights, -infinity if stopped early, and estimated batch-norm statistics."""

    accuracy: float
    statistics: Weights


@dataclass(frozen=True)
class Evaluator:
    """Scores weights on the validation split, with estimated batch-norm statistics.

    Features are cached while they fit where only the head differs between weights.

    models: on `device`, a thread each, as shared threads change last bits. They load the weights of
    each call, and their training flags are restored.
    targets_N: as `target` takes them.
    batch_norm_examples_M: None uses the weights' own statistics.
    frozen: names in the state dict that are the same in all weights.
    """

    models: Sequence[nn.Module]
    inputs: InputFormat
    device: torch.device | str
    examples_N: Stored
    target: Target
    targets_N: Tensor
    batch_norm_examples_M: Stored | None
    batch_size: int = 128
    frozen: frozenset[str] = frozenset()
    # Features by batch number; threads that compute one twice get the same values.
    _features: dict[int, Tensor] = field(default_factory=dict, init=False)

    def __call__(self, weights: Sequence[OpenWeights], floor: float) -> Iterator[Scored]:
        """Scores in the order of the weights; `floor` as for `score`."""
        free: SimpleQueue[nn.Module] = SimpleQueue()
        for model in self.models:
            free.put(model)

        def score(opened: OpenWeights) -> Scored:
            model = free.get()
            try:
                return self.score(opened(), floor, model)
            finally:
                free.put(model)

        if len(self.models) == 1:
            yield from map(score, weights)
            return
        # A thread keeps the number of threads of its first kernel.
        with computation(1), ThreadPoolExecutor(len(self.models)) as pool:
            yield from pool.map(score, weights)

    def score(
        self,
        weights: Mapping[str, Tensor],
        floor: float = -math.inf,
        model: nn.Module | None = None,
    ) -> Scored:
        """Score weights by a model, the first by default; stops if they cannot exceed the floor."""
        model = self.models[0] if model is None else model
        for name, tensor in model.state_dict().items():
            tensor.copy_(weights[name])
        statistics, examples_M = Weights(), self.batch_norm_examples_M
        if examples_M is not None:
            size = self.batch_size
            batches = batch_norm_inputs(examples_M, self.inputs, self.device, batch_size=size)
            statistics = reestimate_batch_norm(model, batches, self.frozen)
        return Scored(self._accuracy(model, floor), statistics)

    @torch.inference_mode()
    def _accuracy(self, model: nn.Module, floor: float) -> float:
        num_left = len(self.targets_N)
        tally, head = self.target.tally(), None
        if self.frozen and model.state_dict().keys() - self.frozen == head_names(model):
            # Only the last layer differs between weights.
            head = find_head(model)[1]
        targets = torch.split(self.targets_N, self.batch_size)
        parts = split_stored(self.examples_N, self.batch_size)
        with evaluation_mode(model):
            for number, (examples_B, targets_B) in enumerate(zip(parts, targets, strict=True)):
                tally.add(self._outputs(model, head, number, examples_B), targets_B.to(self.device))
                num_left -= len(targets_B)
                if floor > -math.inf and tally.best_possible(num_left) <= floor:
                    return -math.inf
        return tally.score()

    def _outputs(
        self, model: nn.Module, head: nn.Linear | None, number: int, examples_B: Stored
    ) -> Tensor:
        inputs = partial(to_model_input, examples_B, self.inputs, self.device)
        if head is None:
            return call_model(model, inputs())
        features_BD = self._features.get(number)
        if features_BD is None:
            _, features_BD = forward_with_features(model, inputs())
            if features_BD.nbytes * (number + 1) <= _MOST_KEPT_BYTES:
                self._features[number] = features_BD
        outputs_BT: Tensor = head(features_BD.to(head.weight.dtype))
        return outputs_BT


def num_evaluated_together(config: RunConfig) -> int:
    """Number of weights that a CPU scores at a time for a run's soup."""
    tried = config.soup.num_alphas - 1 if config.soup.method is SoupMethod.INTERPOLATION else 1
    asked = max(config.learners.num_learners, tried)
    return min(config.evaluation_threads, asked)
