"""A model of 650 weights, so that what a test measures is the service."""

from __future__ import annotations

from torch import nn


def linear(*, num_classes: int) -> nn.Module:
    """A linear classifier of digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
