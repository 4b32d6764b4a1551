"""Signals of one model: a forward pass over the data gives each example's error and feature.

Shapes: N examples, B of a batch, C classes, D features.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from lipt.common.data import Dataset
from lipt.common.data.room import make_room
from lipt.common.models import find_head
from lipt.common.signals.passes import Batches, pass_over
from lipt.common.targets.values import SingleLabel
from lipt.core.signals.signals import Signals
from lipt.core.signals.stored import STORAGE_LIMITS, StorageLimits


def compute_signals(
    model: nn.Module,
    batches: Batches,
    *,
    limits: StorageLimits = STORAGE_LIMITS,
    scratch: Path | None = None,
) -> Signals:
    """One forward pass over the examples, in evaluation mode."""
    signals = empty_signals(model, batches.dataset, batches.ids_N, limits=limits, scratch=scratch)
    pass_over(model, batches, signals.errors_NC, signals.features_ND)
    return signals


def empty_signals(
    model: nn.Module,
    dataset: Dataset,
    ids_N: Tensor,
    *,
    limits: StorageLimits = STORAGE_LIMITS,
    scratch: Path | None = None,
) -> Signals:
    """Signals of examples whose errors and features are yet to be written into them."""
    _, head = find_head(model)
    room = partial(make_room, folder=scratch, memory_bytes=limits.memory_bytes)
    shapes = (len(ids_N), head.out_features), (len(ids_N), head.in_features)
    return Signals(
        room(shapes[0], limits.error_dtype(math.prod(shapes[0]))),
        room(shapes[1], limits.feature_dtype(math.prod(shapes[1]))),
        dataset.labels_N[ids_N],
        has_bias=head.bias is not None,
        kind=dataset.target.kind,
    )


def errors_of(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Of classes, the errors softmax - onehot, float32."""
    return SingleLabel(logits_NC.shape[-1]).residuals(logits_NC, labels_N)
