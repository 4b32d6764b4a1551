"""Recheck: does a subset that was selected on earlier weights still serve at new ones?

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
from lipt.core.signals.gradient_norms import LossSum, loss_sum, trainable
from lipt.core.signals.quadratic_model import fit_quadratic_model, must_reselect
from lipt.core.workspace import Workspace

# A hundredth of the data, as CREST's random sets, but enough for a stable mean.
_SHARE = 0.01
_MIN_SAMPLE = 256


@dataclass(frozen=True)
class Recheck:
    """The loss that the quadratic model predicts, and the actual one."""

    predicted_loss: float
    actual_loss: float

    @property
    def still_serves(self) -> bool:
        """Whether the earlier subset can stay."""
        return not must_reselect(self.predicted_loss, self.actual_loss)


def recheck(
    workspace: Workspace,
    config: RunConfig,
    inputs: InputFormat,
    *,
    anchor: BlobName,
    weights: BlobName,
) -> Recheck:
    """Fit the quadratic model at `anchor`, and evaluate it and the loss at `weights`."""

    def parts(model: nn.Module) -> Iterator[LossSum]:
        batches = workspace.batches(inputs, "checking the previous subset", some=ids)
        for _, inputs_B, targets_B in batches:
            yield loss_sum(model, workspace.dataset.target, inputs_B, targets_B)

    # In float32 to the end: two losses are compared.
    with pinned_kernels(config.evaluation_threads):
        ids = sample_ids(len(workspace.dataset), config.seed)
        old = workspace.loaded_model(config, anchor)
        seed = derive_seed(config.seed, "quadratic model")
        fitted = fit_quadratic_model(parts(old), trainable(old), len(ids), seed=seed)
        model = workspace.loaded_model(config, weights)
        parameters = trainable(model)
        with torch.no_grad():
            losses = [part(parameters) for part in parts(model)]
        actual_loss = float(torch.stack(losses).double().sum()) / len(ids)
        return Recheck(fitted.predict(parameters), actual_loss)


def sample_ids(num_examples: int, seed: int) -> Tensor:
    """The examples that the losses are means over: the same for every check of a run."""
    size = min(num_examples, max(_MIN_SAMPLE, round(num_examples * _SHARE)))
    generator = derive_generator(seed, "quadratic model sample")
    return torch.randperm(num_examples, generator=generator)[:size].sort().values
