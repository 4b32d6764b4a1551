"""Validation score: what the soup decides by; of classes, the accuracy.

Scores are counted, not averaged over batches, so that equal predictions are
equal scores whatever the batch size. Small splits are normalized once; of large ones
images stay uint8 and are normalized batch by batch: ImageNet's as floats would take 15 GB.

Shapes: N examples, M for batch norm, B of them in a batch, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.errors import ConfigError
from lipt.common.inputs.formats import InputFormat
from lipt.common.inputs.model_input import to_model_input
from lipt.common.inputs.specs import ImageSpec, Inputs, InputSpec, call_model
from lipt.common.inputs.stored import Stored, num_stored, split_evenly, split_stored
from lipt.common.models import find_head, forward_with_features
from lipt.common.models.evaluation_mode import evaluation_mode
from lipt.common.models.freezing import head_names
from lipt.common.targets.target import Target
from lipt.common.weights.specs import Weights
from lipt.core.batch_norm import (
    batch_norm_statistics,
    has_batch_norm,
    reestimate_batch_norm,
)
from lipt.core.prepared_inputs import Kept, PreparedInputs


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
    """What an evaluation found out about weights."""

    # The score of other targets than classes; -infinity of weights that were given up.
    accuracy: float
    # Entries that take the place of those evaluated: their batch-norm statistics.
    mended: Weights


def batch_norm_inputs(
    examples_M: Stored, inputs: InputFormat, device: torch.device | str, *, batch_size: int
) -> Iterator[Inputs]:
    """Model inputs to estimate batch-norm statistics on, in parts of at most `batch_size`.

    Args:
        examples_M: as they are stored, at least one.
        inputs: what models are given of them.
        device: where the inputs go.
        batch_size: examples per part; the parts are even, because a last one of a single
            example would have no variance.
    """
    for examples_B in _even_parts(examples_M, batch_size):
        yield to_model_input(examples_B, inputs, device)


def _even_parts(examples_M: Stored, batch_size: int) -> Iterator[Stored]:
    return split_evenly(examples_M, -(-num_stored(examples_M) // batch_size))


@dataclass(frozen=True)
class Evaluator:
    """Scores weights on the validation split, their batch-norm statistics mended first.

    What is the same for all weights is made once, as long as it takes little memory: model inputs,
    and where the head alone differs, the features that enter it.

    Attributes:
        model: on `device`; takes on the weights of each call, its training flags are restored.
        inputs: what it is given of the examples.
        device: where the model is.
        examples_N: as they are stored.
        target: what the model is to give of them.
        targets_N: as `target` takes them.
        batch_norm_examples_M: training examples; None evaluates with the statistics that the
            weights came with.
        batch_size: examples per forward pass.
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
        """The score of `weights`, and the statistics that it was reached with.

        Args:
            weights: the model's; asked for each tensor once, and none is kept.
            floor: weights are given up as soon as it is certain that they are not above it.

        Raises:
            ConfigError: there are no examples.
        """
        mended = self.take_on(weights)
        return Scored(self._score(floor), mended)

    def twin(self, model: nn.Module) -> Evaluator:
        """Another one that may run at the same time: what is made once is made once for both.

        Args:
            model: the same as `self.model`, and not it.
        """
        twin = replace(self, model=model)
        for name in ("batches", "batch_norm_batches", "_features", "targets"):
            twin.__dict__[name] = getattr(self, name)
        return twin

    def take_on(self, weights: Mapping[str, Tensor]) -> Weights:
        """Load the weights and mend their statistics, which are returned."""
        for name, tensor in self.model.state_dict().items():
            tensor.copy_(weights[name])
        if not self.mends:
            return {}
        with pinned_kernels():
            reestimate_batch_norm(self.model, self.batch_norm_batches, self.frozen)
        return batch_norm_statistics(self.model, self.frozen)

    @property
    def mends(self) -> bool:
        """Whether weights' statistics are estimated again."""
        wanted = self.batch_norm_examples_M is not None
        return wanted and has_batch_norm(self.model, self.frozen)

    @torch.inference_mode()
    def _score(self, floor: float) -> float:
        """The score, or -infinity once it cannot be above the floor any more."""
        if not len(self.targets_N):
            raise ConfigError(
                "accuracy over 0 examples is undefined. Hold out a larger validation.fraction."
            )
        tally, num_left = self.target.tally(), len(self.targets_N)
        with evaluation_mode(self.model), pinned_kernels():
            for number, targets_B in enumerate(self.targets):
                tally.add(self.outputs(number), targets_B)
                num_left -= len(targets_B)
                if floor > -math.inf and tally.best_possible(num_left) <= floor:
                    return -math.inf
        return tally.score()

    def outputs(self, number: int) -> Tensor:
        """What the model makes of a batch."""
        if self.head is None:
            return call_model(self.model, self.batches[number])
        known_BD = self._features.find(number)
        if known_BD is None:
            outputs_BT, features_BD = forward_with_features(self.model, self.batches[number])
            self._features.keep(number, features_BD)
        else:
            outputs_BT = self.head(known_BD)
        return outputs_BT

    @cached_property
    def head(self) -> nn.Linear | None:
        """The last layer where it alone differs between weights; None where more does."""
        if not self.frozen:
            return None
        differs = self.model.state_dict().keys() - self.frozen
        return find_head(self.model)[1] if differs == head_names(self.model) else None

    @cached_property
    def _features(self) -> Kept[Tensor]:
        return Kept()

    @cached_property
    def targets(self) -> tuple[Tensor, ...]:
        """Of each batch, where the model is."""
        batches = torch.split(self.targets_N, self.batch_size)
        return tuple(targets_B.to(self.device) for targets_B in batches)

    @cached_property
    def batches(self) -> Sequence[Inputs]:
        """Of the validation split."""
        parts = list(split_stored(self.examples_N, self.batch_size))
        return PreparedInputs(parts, self.inputs, self.device)

    @cached_property
    def batch_norm_batches(self) -> Sequence[Inputs]:
        """What statistics are estimated on; none where they are not."""
        if self.batch_norm_examples_M is None:
            return ()
        parts = list(_even_parts(self.batch_norm_examples_M, self.batch_size))
        return PreparedInputs(parts, self.inputs, self.device)
