"""A model's signals: what a run's model, whatever its weights, makes of all examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from lipt.common.config.run_config import RunConfig
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.inputs.formats import InputFormat
from lipt.core.signals.compute import compute_signals
from lipt.core.signals.gradient_norms import default_chunk_size, full_gradient_norms
from lipt.core.signals.signals import Signals, labels_only
from lipt.core.workspace import Workspace

# A run's model with some weights, on the workspace's device, over all examples.
ComputeSignals = Callable[[Workspace, RunConfig, InputFormat, nn.Module], Signals]


def model_signals(
    workspace: Workspace, config: RunConfig, inputs: InputFormat, model: nn.Module
) -> Signals:
    """Errors and features, by one forward pass over the data."""
    with pinned_kernels(config.evaluation_threads):
        batches = workspace.batches(inputs, "computing signals")
        return compute_signals(model, batches, scratch=workspace.scratch)


def model_norms(
    workspace: Workspace, config: RunConfig, inputs: InputFormat, model: nn.Module
) -> Signals:
    """The norms of all parameters' gradients, besides the labels; a backward pass per example."""
    chunks = workspace.batches(
        inputs,
        "computing per-example gradients",
        size=default_chunk_size(model, workspace.device),
    )
    norms_N = full_gradient_norms(model, chunks, cpu_threads=config.evaluation_threads)
    alone = labels_only(workspace.dataset.labels_N, workspace.dataset.target.kind)
    return replace(alone, gradient_norms_N=norms_N)
