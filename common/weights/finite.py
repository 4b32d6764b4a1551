"""Finite weights: one NaN would spread to every merged weight, so a learner with any is refused."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lipt.common.errors import LearnerRejectedError


def require_finite(weights: Mapping[str, torch.Tensor]) -> None:
    """Refuse weights with a NaN or an infinity.

    Args:
        weights: tensors by name, any shape and dtype. Integers are always finite.

    Raises:
        LearnerRejectedError: names the first tensor that is not finite, with how
            many of its values are not.
    """
    bad = {name: count for name, tensor in weights.items() if (count := _num_non_finite(tensor))}
    if bad:
        name, count = next(iter(bad.items()))
        others = f", as do {len(bad) - 1} other tensors" if len(bad) > 1 else ""
        raise LearnerRejectedError(
            f"{name!r} holds {count} non-finite values of {weights[name].numel()}{others}: the "
            "learner diverged. Lower learners.learning_rate, or use precision float32."
        )


def _num_non_finite(tensor: torch.Tensor) -> int:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0
    return tensor.numel() - int(torch.isfinite(tensor).sum())
