"""Signals of one model: a forward pass over the data gives each example's error and feature.

Shapes: N examples, B of a batch, C classes, D features.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from lipt.common.data.room import make_room
from lipt.common.models import find_head
from lipt.common.signals.batches import Batches
from lipt.common.signals.finite import require_finite_rows
from lipt.common.signals.passing import pass_over
from lipt.common.targets.single_label import SingleLabel
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

    def take(rows: slice, errors_BC: Tensor, features_BD: Tensor) -> None:
        errors_NC[rows] = errors_BC
        features_ND[rows] = features_BD
        if feature_dtype == torch.float16:
            fits_B = features_ND[rows].isfinite().all(dim=-1)
            require_finite_rows(fits_B, ids_N[rows], "features, kept in float16,")

    pass_over(model, batches, take)
    labels_N = batches.dataset.labels_N[ids_N]
    has_bias = head.bias is not None
    return Signals(errors_NC, features_ND, labels_N, has_bias=has_bias, kind=target.kind)


def errors_of(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Of classes, the errors softmax - onehot, float32."""
    return SingleLabel(logits_NC.shape[-1]).residuals(logits_NC, labels_N)
