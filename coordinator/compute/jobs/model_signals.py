"""A model's signals: what a run's model, whatever its weights, makes of all examples."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from lipt.common.config.run_config import RunConfig
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.inputs.formats import InputFormat
from lipt.coordinator.compute.context import Context
from lipt.core.signals.compute import compute_signals
from lipt.core.signals.gradient_norms import default_chunk_size, full_gradient_norms
from lipt.core.signals.signals import Signals, labels_only


def model_signals(
    context: Context, config: RunConfig, inputs: InputFormat, model: nn.Module
) -> Signals:
    """Errors and features, by one forward pass over the data."""
    with pinned_kernels(config.evaluation_threads):
        batches = context.batches(inputs, "computing signals")
        return compute_signals(model, batches, scratch=context.signals_dir)


def model_norms(
    context: Context, config: RunConfig, inputs: InputFormat, model: nn.Module
) -> Signals:
    """The norms of all parameters' gradients, besides the labels; a backward pass per example."""
    chunks = context.batches(
        inputs,
        "computing per-example gradients",
        size=default_chunk_size(model, context.device),
    )
    norms_N = full_gradient_norms(model, chunks, cpu_threads=config.evaluation_threads)
    alone = labels_only(context.dataset.labels_N, context.dataset.target.kind)
    return replace(alone, gradient_norms_N=norms_N)
