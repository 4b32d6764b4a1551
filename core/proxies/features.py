"""Features of proxies: pooled ones of models, and several kinds side by side.

Pooled are what enters a model's head and quarters of its last feature map.
The average over a whole image, which enters the head, forgets where things are; averages over
2x2 regions of the last feature map keep some of it. Learners are asked one after the other, so
that one model is in memory at a time, with batch-norm statistics that fit its weights; examples
become inputs once for all of them.

Shapes: N examples, B of a batch, M for batch norm, C channels of a map, D features, W kept ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.data import Dataset
from lipt.common.inputs.model_input import Stored, split_stored, to_model_input
from lipt.common.inputs.specs import InputFormat, Inputs, call_model
from lipt.common.models import find_head
from lipt.common.models.head import evaluation_mode
from lipt.common.signals.blocks import row_blocks
from lipt.common.signals.passes import require_finite_rows
from lipt.common.weights.specs import Weights
from lipt.core.batch_norm import (
    batch_norm_statistics,
    has_batch_norm,
    reestimate_batch_norm,
)
from lipt.core.evaluation import batch_norm_inputs
from lipt.core.signals.stored import STORAGE_LIMITS, StorageLimits

# Of all models of a bank together: a ridge head's time grows with the square of it.
MAX_WIDTH = 4096
_POOLED_SIDE = 2

Loader = Callable[[], Weights]


@torch.inference_mode()
def pooled_features(model: nn.Module, inputs_B: Inputs) -> Tensor:
    """The head's inputs, then the last feature map in 2x2 average pooling; B x (D + 4 C).

    That map is the last four-dimensional output of a module, of at least 2x2, before the head
    is called. Without one there are the head's inputs alone.

    Args:
        model: in evaluation mode; one that `find_head` finds the head of.
        inputs_B: as the model takes them.

    Raises:
        ConfigError: the model has no head.
    """
    _, head = find_head(model)
    seen = _Seen()
    hooks = [
        module.register_forward_hook(seen.keep_map) for module in model.modules() if module != head
    ]
    hooks.append(head.register_forward_pre_hook(seen.keep_features))
    try:
        call_model(model, inputs_B)
    finally:
        for hook in hooks:
            hook.remove()
    features_BD = seen.features
    assert features_BD is not None  # noqa: S101 - checked when the model was built
    if seen.map is None:
        return features_BD.float()
    pooled_BC22 = functional.adaptive_avg_pool2d(seen.map.float(), _POOLED_SIDE)
    return torch.cat([features_BD.float(), pooled_BC22.flatten(start_dim=1)], dim=1)


@dataclass
class _Seen:
    """What a forward pass has shown until the head was called."""

    map: Tensor | None = None
    features: Tensor | None = None

    def keep_map(self, _module: nn.Module, _args: object, output: object) -> None:
        if self.features is not None or not isinstance(output, Tensor) or output.ndim != 4:
            return
        if min(output.shape[2:]) >= _POOLED_SIDE:
            self.map = output

    def keep_features(self, _module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.features = args[0]


@dataclass
class ModelBank:
    """Features of models of one architecture, side by side.

    model: on `device`; takes on the weights of each.
    loaders: the models' weights, each read when it is its turn.
    inputs: what models are given of examples.
    batch_size: examples of a forward pass.
    batch_norm_examples_M: to estimate every model's batch-norm statistics on; None takes
        those that the weights came with.
    generator_of: draws a model's projection, by its number.
    max_width: features of all models together; more are projected at random, model by model.
    frozen: names of batch-norm statistics that stay as they came.
    """

    model: nn.Module
    loaders: Sequence[Loader]
    inputs: InputFormat
    device: torch.device
    batch_size: int
    batch_norm_examples_M: Stored | None
    generator_of: Callable[[int], torch.Generator]
    max_width: int = MAX_WIDTH
    frozen: frozenset[str] = frozenset()
    _statistics: dict[int, Weights] = field(default_factory=dict)
    _projections: dict[int, Tensor] = field(default_factory=dict)

    def __call__(self, examples_N: Stored) -> Tensor:
        """The features of some stored examples; N x D float32, on the CPU."""
        batches = [
            to_model_input(examples_B, self.inputs, self.device)
            for examples_B in split_stored(examples_N, self.batch_size)
        ]
        of_models = []
        with evaluation_mode(self.model):
            for number in range(len(self.loaders)):
                self._take_on(number)
                parts = [self._features(number, inputs_B) for inputs_B in batches]
                of_models.append(torch.cat(parts))
        return torch.cat(of_models, dim=1)

    def _take_on(self, number: int) -> None:
        known = self._statistics.get(number, {})
        self.model.load_state_dict({**self.loaders[number](), **known})
        examples_M = self.batch_norm_examples_M
        if examples_M is not None and not known and has_batch_norm(self.model, self.frozen):
            inputs = batch_norm_inputs(
                examples_M, self.inputs, self.device, batch_size=self.batch_size
            )
            reestimate_batch_norm(self.model, inputs, self.frozen)
            self._statistics[number] = batch_norm_statistics(self.model, self.frozen)

    def _features(self, number: int, inputs_B: Inputs) -> Tensor:
        features_BD = pooled_features(self.model, inputs_B)
        num_features, width = features_BD.shape[1], max(1, self.max_width // len(self.loaders))
        if num_features > width:
            if number not in self._projections:
                drawn_DW = torch.randn(num_features, width, generator=self.generator_of(number))
                self._projections[number] = (drawn_DW / width**0.5).to(self.device)
            features_BD = features_BD @ self._projections[number]
        return features_BD.cpu()


# Enough of them that loading each model's weights for a block is little.
_BLOCK_BYTES = 8 * 1024**2
_MIN_BLOCK = 1024

# Features of the examples with these ids, as they are stored: B x d, on the CPU.
Extractor = Callable[[Tensor, Stored], Tensor]


def side_by_side(
    extractors: Sequence[Extractor],
    dataset: Dataset,
    ids_N: Tensor,
    *,
    on_progress: Callable[[int, int], None],
    limits: StorageLimits = STORAGE_LIMITS,
) -> Tensor:
    """All features of some examples; N x D, float32 or float16.

    Args:
        extractors: at least one; their columns are in this order.
        dataset: where the examples come from.
        ids_N: the examples, at least one.
        on_progress: told how many of them are done.
        limits: what is kept in float32.

    Raises:
        SignalsError: features are not finite; names the first ids.
    """
    row_bytes = dataset.inputs.num_bytes
    block_bytes = max(_BLOCK_BYTES, _MIN_BLOCK * row_bytes)
    features_ND: Tensor | None = None
    for rows in row_blocks(len(ids_N), row_bytes, block_bytes):
        ids_B = ids_N[rows]
        examples_B = dataset.examples(ids_B)
        block_BD = torch.cat([extract(ids_B, examples_B) for extract in extractors], dim=1)
        if features_ND is None:
            shape = (len(ids_N), block_BD.shape[1])
            features_ND = torch.empty(shape, dtype=limits.feature_dtype(math.prod(shape)))
        features_ND[rows] = block_BD.to(features_ND.dtype)
        finite_B = features_ND[rows].isfinite().all(dim=-1)
        require_finite_rows(finite_B, ids_B, "features")
        on_progress(rows.stop, len(ids_N))
    if features_ND is None:
        raise ValueError("there are no examples to take features of")
    return features_ND
