"""Calibration: leave-one-out outputs become chances by one temperature.

Softmax of the outputs times the sharpness under which the given labels are likeliest. The
negative log-likelihood is convex in the sharpness, so that bisection finds the one minimum.

Shapes: N examples, C classes.
Source: Guo et al. 2017, "On Calibration of Modern Neural Networks" (arXiv:1706.04599).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SHARPEST = 1e4
_FLATTEST = 1e-3
_HALVINGS = 40


def fit_sharpness(outputs_NC: Tensor, labels_N: Tensor, weights_N: Tensor) -> float:
    """The sharpness of the likeliest softmax.

    Args:
        outputs_NC: leave-one-out outputs.
        labels_N: int64, the given ones.
        weights_N: how much each example counts.
    """
    outputs_64 = outputs_NC.double()
    own_N = outputs_64.gather(1, labels_N[:, None]).squeeze(1)

    def slope(sharpness: float) -> float:
        chances_NC = (sharpness * outputs_64).softmax(dim=-1)
        return float(weights_N @ ((chances_NC * outputs_64).sum(dim=-1) - own_N))

    low, high = math.log(_FLATTEST), math.log(_SHARPEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(math.exp(middle)) > 0 else (middle, high)
    return math.exp((low + high) / 2)


def chances(outputs_NC: Tensor, sharpness: float) -> Tensor:
    """The softmax of the outputs; N x C float32."""
    return torch.softmax(outputs_NC.double() * sharpness, dim=-1).float()
