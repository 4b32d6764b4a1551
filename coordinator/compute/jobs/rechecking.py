"""Recheck job: does a subset that was selected on earlier weights still serve at new ones?

CREST's question, on a random sample of the data: does the quadratic model of the loss around the
earlier weights still predict the loss at the new ones?
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipt.common.blobs.blob import BlobName
from lipt.common.config.run_config import RunConfig
from lipt.common.determinism import derive_generator, derive_seed, pinned_kernels
from lipt.common.inputs.specs import InputFormat
from lipt.coordinator.compute.context import Context
from lipt.core.signals.gradient_norms import LossSum, loss_sum, trainable
from lipt.core.signals.quadratic_model import fit_quadratic_model, must_reselect

# A hundredth of the data, as CREST's random sets, but enough for a stable mean.
_SHARE = 0.01
_MIN_SAMPLE = 256


@dataclass(frozen=True)
class Recheck:
    """What was found: the loss that the quadratic model predicts, and the loss there is."""

    predicted_loss: float
    actual_loss: float

    @property
    def still_serves(self) -> bool:
        """Whether the earlier subset can stay."""
        return not must_reselect(self.predicted_loss, self.actual_loss)


@dataclass(frozen=True)
class RecheckSubset:
    """Compare the loss at `weights` with what the loss around `anchor` foretells."""

    config: RunConfig
    inputs: InputFormat
    # What the earlier subset was selected on.
    anchor: BlobName
    weights: BlobName

    def run(self, context: Context) -> Recheck:
        """Fit the quadratic model at the anchor, and evaluate both at the new weights."""
        # In float32 to the end: two losses are compared.
        with pinned_kernels(self.config.evaluation_threads):
            ids = sample_ids(len(context.dataset), self.config.seed)
            anchor = context.loaded_model(self.config, self.anchor)
            fitted = fit_quadratic_model(
                self._parts(context, anchor, ids),
                trainable(anchor),
                len(ids),
                seed=derive_seed(self.config.seed, "quadratic model"),
            )
            model = context.loaded_model(self.config, self.weights)
            parameters = trainable(model)
            with torch.no_grad():
                losses = [part(parameters) for part in self._parts(context, model, ids)]
            actual_loss = float(torch.stack(losses).double().sum()) / len(ids)
            return Recheck(fitted.predict(parameters), actual_loss)

    def _parts(self, context: Context, model: nn.Module, ids: Tensor) -> Iterator[LossSum]:
        batches = context.batches(self.inputs, "checking the previous subset", some=ids)
        for _, inputs_B, targets_B in batches:
            yield loss_sum(model, context.dataset.target, inputs_B, targets_B)


def sample_ids(num_examples: int, seed: int) -> Tensor:
    """The examples that the losses are means over: the same for every check of a run."""
    size = min(num_examples, max(_MIN_SAMPLE, round(num_examples * _SHARE)))
    generator = derive_generator(seed, "quadratic model sample")
    return torch.randperm(num_examples, generator=generator)[:size].sort().values
