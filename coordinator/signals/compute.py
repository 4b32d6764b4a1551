"""Signals of one model: a forward pass over the data gives each example's error and feature.

The gradient is that of each example's OWN loss. A mean over its batch would weigh the
examples of a last, smaller batch B / b times too much.

Shapes: N examples, B of a batch, C classes, D features.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.models import find_head, forward_with_features
from lipt.common.models.evaluation_mode import evaluation_mode
from lipt.common.targets.single_label import SingleLabel
from lipt.coordinator.signals.arriving import arriving
from lipt.coordinator.signals.batches import Batches
from lipt.coordinator.signals.finite import require_finite_rows
from lipt.coordinator.signals.room import make_room
from lipt.coordinator.signals.signals import Signals
from lipt.coordinator.signals.stored import STORAGE_LIMITS, StorageLimits


def compute_signals(
    model: nn.Module,
    batches: Batches,
    *,
    limits: StorageLimits = STORAGE_LIMITS,
    scratch: Path | None = None,
) -> Signals:
    """One forward pass over the examples, in evaluation mode.

    Args:
        model: on the batches' device; its training flags are restored.
        batches: of N examples; row i of the signals is the example of the i-th id.
        limits: what is kept in float32, and what in memory.
        scratch: a folder for files of signals that are too large for memory; None for none.

    Raises:
        SignalsError: the model's outputs are not finite, or its features too large for
            float16 where they are kept in it; names the first ids.
        ConfigError: the model has no linear head.
    """
    _, head = find_head(model)
    ids_N, target = batches.ids_N, batches.dataset.target
    error_dtype = limits.error_dtype(len(ids_N) * head.out_features)
    feature_dtype = limits.feature_dtype(len(ids_N) * head.in_features)
    room = partial(make_room, folder=scratch, memory_bytes=limits.memory_bytes)
    errors_NC = room((len(ids_N), head.out_features), error_dtype)
    features_ND = room((len(ids_N), head.in_features), feature_dtype)
    with evaluation_mode(model), pinned_kernels(), torch.inference_mode():
        for rows, (finite_B, errors_BC, features_BD) in arriving(_outputs(model, batches)):
            require_finite_rows(finite_B, ids_N[rows], "outputs")
            errors_NC[rows] = errors_BC
            features_ND[rows] = features_BD
            if feature_dtype == torch.float16:
                fits_B = features_ND[rows].isfinite().all(dim=-1)
                require_finite_rows(fits_B, ids_N[rows], "features, kept in float16,")
    labels_N = batches.dataset.labels_N[ids_N]
    has_bias = head.bias is not None
    return Signals(errors_NC, features_ND, labels_N, has_bias=has_bias, kind=target.kind)


def _outputs(model: nn.Module, batches: Batches) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
    """Of each batch its rows, and whether outputs are finite, errors and features."""
    target = batches.dataset.target
    for rows, inputs_B, targets_B in batches:
        logits_BC, features_BD = forward_with_features(model, inputs_B)
        finite_B = logits_BC.isfinite().all(dim=-1) & features_BD.isfinite().all(dim=-1)
        yield rows, (finite_B, target.residuals(logits_BC, targets_B), features_BD)


def errors_of(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Of classes, the errors softmax - onehot, float32."""
    return SingleLabel(logits_NC.shape[-1]).residuals(logits_NC, labels_N)
