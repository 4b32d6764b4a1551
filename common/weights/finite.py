"""Finite weights: one NaN or infinity would spread to all that is made of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def non_finite(weights: Mapping[str, torch.Tensor]) -> str:
    """Which weights are NaN or infinite, as the beginning of a sentence; empty where none is.

    Args:
        weights: tensors by name, any shape and dtype. Integers are always finite.

    Returns:
        The first such tensor by name, how many of its values it concerns, and how many other
        tensors have some.
    """
    bad = {name: count for name, tensor in weights.items() if (count := _num_non_finite(tensor))}
    if not bad:
        return ""
    name, count = next(iter(bad.items()))
    said = f"{name!r} has NaN or infinite values ({count} of {weights[name].numel()})"
    others = len(bad) - 1
    if not others:
        return said
    return (
        f"{said}, and so {'does 1 other tensor' if others == 1 else f'do {others} other tensors'}"
    )


def _num_non_finite(tensor: torch.Tensor) -> int:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0
    return tensor.numel() - int(torch.isfinite(tensor).sum())
