"""Signals of one model: a forward pass over the data gives each example's error and feature.

The gradient is that of each example's OWN loss. A mean over its batch would weigh the
examples of a last, smaller batch B / b times too much.

Shapes: N examples, B of a batch, C classes, D features.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipt.common.data import Dataset
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.images.formats import ImageFormat
from lipt.common.images.model_input import to_model_input
from lipt.common.models import find_head, forward_with_features
from lipt.common.models.evaluation_mode import evaluation_mode
from lipt.coordinator.signals.finite import require_finite_rows
from lipt.coordinator.signals.signals import Signals
from lipt.coordinator.signals.stored import STORAGE_LIMITS, StorageLimits

OnProgress = Callable[[int, int], None]

# Fixed, so that a result does not depend on who asks.
SIGNALS_BATCH_SIZE = 256


def compute_signals(
    model: nn.Module,
    dataset: Dataset,
    image: ImageFormat,
    *,
    device: torch.device,
    on_progress: OnProgress,
    batch_size: int = SIGNALS_BATCH_SIZE,
    ids: Tensor | None = None,
    limits: StorageLimits = STORAGE_LIMITS,
) -> Signals:
    """One forward pass over the examples, in evaluation mode.

    Args:
        model: on `device`; its training flags are restored.
        dataset: where images and labels come from.
        image: how its images are normalized.
        device: where the model is.
        on_progress: told after every batch how many of the N examples are done.
        batch_size: images per forward pass.
        ids: N int64 ids; row i of the signals is example ids[i]. All examples where None.
        limits: what is kept in float32.

    Raises:
        SignalsError: the model's outputs are not finite, or its features too large for
            float16 where they are kept in it; names the first ids.
        ConfigError: the model has no linear head.
    """
    _, head = find_head(model)
    ids_N = torch.arange(len(dataset)) if ids is None else ids
    labels_N = dataset.labels_N[ids_N]
    error_dtype = limits.error_dtype(len(ids_N) * head.out_features)
    feature_dtype = limits.feature_dtype(len(ids_N) * head.in_features)
    errors_NC = torch.empty(len(ids_N), head.out_features, dtype=error_dtype)
    features_ND = torch.empty(len(ids_N), head.in_features, dtype=feature_dtype)
    with evaluation_mode(model), pinned_kernels(), torch.inference_mode():
        for start in range(0, len(ids_N), batch_size):
            rows = slice(start, min(start + batch_size, len(ids_N)))
            inputs_BCHW = to_model_input(dataset.images(ids_N[rows]), image, device)
            logits_BC, features_BD = forward_with_features(model, inputs_BCHW)
            finite_B = logits_BC.isfinite().all(dim=-1) & features_BD.isfinite().all(dim=-1)
            require_finite_rows(finite_B, ids_N[rows], "outputs")
            errors_NC[rows] = errors_of(logits_BC, labels_N[rows].to(device)).cpu()
            features_ND[rows] = features_BD.cpu()
            if feature_dtype == torch.float16:
                finite_B = features_ND[rows].isfinite().all(dim=-1)
                require_finite_rows(finite_B, ids_N[rows], "features, kept in float16,")
            on_progress(rows.stop, len(ids_N))
    return Signals(errors_NC, features_ND, labels_N, has_bias=head.bias is not None)


def errors_of(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """The errors softmax - onehot, float32: the gradient of each example's own loss by its logits.

    Computed in float64: p - 1 of a confident example has few correct digits in float32.
    """
    errors_NC = logits_NC.to(torch.float64).softmax(dim=-1)
    errors_NC -= functional.one_hot(labels_N, logits_NC.shape[-1])
    return errors_NC.to(torch.float32)
