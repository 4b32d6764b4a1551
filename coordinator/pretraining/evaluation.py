"""Validation score: what the soup decides by; of classes, the accuracy.

Scores are counted, not averaged over batches, so that equal predictions are
equal scores whatever the batch size. Images stay uint8 and are normalized batch
by batch: ImageNet's split as floats would take 15 GB.

Shapes: N examples, M for batch norm, B of them in a batch, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.errors import ConfigError
from lipt.common.inputs.formats import InputFormat
from lipt.common.inputs.model_input import to_model_input
from lipt.common.inputs.specs import ImageSpec, Inputs, InputSpec, call_model
from lipt.common.inputs.stored import Stored, num_stored, split_evenly, split_stored
from lipt.common.models.evaluation_mode import evaluation_mode
from lipt.common.targets.target import Target
from lipt.common.weights.specs import Weights
from lipt.coordinator.pretraining.batch_norm import (
    batch_norm_statistics,
    has_batch_norm,
    reestimate_batch_norm,
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
    """What an evaluation found out about weights."""

    # The score of other targets than classes.
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
    num_batches = -(-num_stored(examples_M) // batch_size)
    for examples_B in split_evenly(examples_M, num_batches):
        yield to_model_input(examples_B, inputs, device)


@dataclass(frozen=True)
class Evaluator:
    """Scores weights on the validation split, their batch-norm statistics mended first.

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
        frozen: names of statistics that stay as they came.
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

    def __call__(self, weights: Mapping[str, Tensor]) -> Scored:
        """The score of `weights`, and the statistics that it was reached with.

        Args:
            weights: the model's; asked for each tensor once, and none is kept.

        Raises:
            ConfigError: there are no examples.
        """
        for name, tensor in self.model.state_dict().items():
            tensor.copy_(weights[name])
        mended: Weights = {}
        examples_M = self.batch_norm_examples_M
        if examples_M is not None and has_batch_norm(self.model, self.frozen):
            with pinned_kernels():
                inputs = batch_norm_inputs(
                    examples_M,
                    self.inputs,
                    self.device,
                    batch_size=self.batch_size,
                )
                reestimate_batch_norm(self.model, inputs, self.frozen)
            mended = batch_norm_statistics(self.model, self.frozen)
        return Scored(accuracy=self._score(), mended=mended)

    @torch.inference_mode()
    def _score(self) -> float:
        if not len(self.targets_N):
            raise ConfigError(
                "accuracy over 0 examples is undefined. Hold out a larger validation.fraction."
            )
        tally = self.target.tally()
        with evaluation_mode(self.model), pinned_kernels():
            for examples_B, targets_B in zip(
                split_stored(self.examples_N, self.batch_size),
                torch.split(self.targets_N, self.batch_size),
                strict=True,
            ):
                inputs_B = to_model_input(examples_B, self.inputs, self.device)
                tally.add(call_model(self.model, inputs_B), targets_B.to(self.device))
        return tally.score()
