"""GLISTER's objective: what choosing an example gains, at the layer as it has stepped.

The gain is eta <g_i, grad L_V(theta - eta sum_S g)>, plus that of a regularizer. All in
float64, and from the cheapest features that give the same products.

Shapes: N examples, V validation examples, C classes, D features, B candidates.
Source: Killamsetty et al. 2021 (arXiv:2012.10630).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lipt.common.errors import SignalsError
from lipt.core.selection.gradients.last_layer import (
    LastLayer,
    alignments,
    aligns_compiled,
    in_validation_span,
    last_layer_at,
    step,
    validation_gradient,
)
from lipt.core.selection.gradients.vectors import LayerGradient, Vectors, gradients_of
from lipt.core.selection.strategies.glister_regularizers import Regularizer
from lipt.core.signals.signals import Signals, given

# Signals of up to this size in float64 are converted once instead of at every update.
_HELD_BYTES = 64 * 1024**2


class GlisterObjective:
    """Gains of all examples, at the layer that the chosen ones have stepped to."""

    def __init__(self, signals: Signals, rate: float, num_updates: int) -> None:
        """Start with nothing chosen; the rate is by the sum of the chosen examples' losses.

        Raises:
            SignalsError: there are no validation signals, or they do not fit.
        """
        self.gradients, self._layer = _cheapest_form(
            gradients_of(signals), last_layer_at(_require_validation(signals)), num_updates
        )
        self._rate = rate
        self._regularizer: Regularizer | None = None
        self._weight = 0.0
        self._is_chosen_N = torch.zeros(
            len(signals), dtype=torch.bool, device=self.gradients.device
        )

    def regularize(self, regularizer: Regularizer | None, strength: float) -> None:
        """Add a function, scaled so that its first gains compare with the objective's own."""
        if regularizer is None:
            return
        own = float(self.gains().abs().max())
        other = float(regularizer.gains(self.all_rows()).max())
        self._weight = strength * (own or 1.0) / (other or 1.0)
        self._regularizer = regularizer

    def all_rows(self) -> Tensor:
        """The row numbers of all examples."""
        return torch.arange(len(self.gradients), device=self._is_chosen_N.device)

    def gradient(self) -> LayerGradient:
        """`rate` times the gradient of the validation loss.

        Where nothing else is weighed against it, a vanishing one is raised: steps by the sum
        of many gradients soon leave no loss on a single class, and gains would tie at 0.
        """
        raised = self._regularizer is None
        return validation_gradient(self._layer, raised=raised).scaled(self._rate)

    def gains(
        self, rows_B: Tensor | None = None, *, gradient: LayerGradient | None = None
    ) -> Tensor:
        """What choosing each of some examples (all where None) gains; B float64.

        Minus infinity for those that are chosen already.
        """
        given = self.gradients if rows_B is None else self.gradients[rows_B]
        gains_B = alignments(given, self.gradient() if gradient is None else gradient)
        if self._regularizer is not None:
            rows = self.all_rows() if rows_B is None else rows_B
            gains_B += self._weight * self._regularizer.gains(rows)
        is_chosen_B = self._is_chosen_N if rows_B is None else self._is_chosen_N[rows_B]
        return gains_B.masked_fill_(is_chosen_B, -math.inf)

    def add(self, new: Tensor, *, update: bool) -> None:
        """Choose examples, and let the layer step on them where that is still of use."""
        self._is_chosen_N[new] = True
        if update:
            self._layer = step(self._layer, self.gradients[new], self._rate)
            if self._regularizer is not None:
                self._regularizer.add(new)


def comparable(gains_B: Tensor) -> Tensor:
    """Gains in float32: those that differ by rounding alone become equal, and ties.

    Scaled by a power of 2, so that gains near the end of a step do not vanish.
    """
    largest = float(gains_B.masked_fill(gains_B.isinf(), 0.0).abs().max())
    exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
    return (gains_B * 2.0 ** -max(exponent, -1000)).float()


def _cheapest_form(
    gradients: Vectors, layer: LastLayer, num_updates: int
) -> tuple[Vectors, LastLayer]:
    """The same gains from fewer features, and converted once for all updates if they fit."""
    num_classes, num_features = gradients[:0].outer_NC.shape[1], gradients.features_ND.shape[1]
    num_validation = len(layer.labels_V)
    work_saved = num_updates * num_classes * (num_features - num_validation)
    fits = 8 * len(gradients) * num_validation <= _HELD_BYTES
    if work_saved > num_validation * num_features and fits:
        gradients, layer = in_validation_span(gradients, layer)
    held_bytes = 8 * len(gradients) * gradients.width
    if held_bytes <= _HELD_BYTES and not aligns_compiled(gradients):
        gradients = gradients.to(torch.float64)
    return gradients, layer


def _require_validation(signals: Signals) -> Signals:
    validation = given(signals.validation or None, "validation examples")
    expected = (signals.errors_NC.shape[1], signals.features_ND.shape[1])
    found = (validation.errors_NC.shape[1], validation.features_ND.shape[1])
    if found != expected:
        raise SignalsError(
            f"the validation examples have {found[0]} classes and {found[1]} features, the "
            f"training examples {expected[0]} and {expected[1]}. Compute both with one model."
        )
    return validation
