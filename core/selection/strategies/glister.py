"""GLISTER: keep the examples whose gradient step lowers the validation loss the most.

The subset S minimizes L_V(theta - eta sum_S g), the validation loss after one step of the last
layer, greedily. The gain of example i is its Taylor term

    gain_i = eta <g_i, grad L_V(theta - eta sum_S g)>,

updated after every pick (exact), or between rounds of picks. The validation logits are enough:
z_v -= eta sum_S e_i (h_i . h_v + 1), from z_v = log p_v, up to a shift. Gains can grow, so lazy
greedy's bounds do not hold. But a gain moves by at most eta |g_i| times the distance that grad L_V
has moved, which bounds it for the exact solver. As in the authors' code, the step is eta times the
SUM of the subset's gradients, which can overshoot; `step=mean` divides eta by K.

Shapes: N examples, V validation examples, S of a step, C classes, D features, Q dimensions of the
validation features' span, K budget, B candidates or rows of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from lipt.core.passes import row_blocks
from lipt.core.selection.selection import Selection, keep_largest, unweighted
from lipt.core.selection.strategy import CLASSES, Cost, Growth, built_in
from lipt.core.selection.vectors import (
    CACHED_BYTES,
    LayerGradient,
    Vectors,
    can_compile,
    gradients_of,
    squared_norms,
    with_bias,
)
from lipt.core.selection.vectors import alignments as plain_alignments
from lipt.core.signals.signals import probabilities_of
from lipt.core.signals.views import LastLayer, ValidationSignals

# Evaluated first by the exact solver: the best of them excludes most others.
_NUM_PROBES = 16
# Above this share of candidates, evaluating all examples is as cheap.
_WORTH_GATHERING = 0.125
# Rounding of gains in float32, included in their bounds.
_ROUNDING = 1e-6
# Signals up to this size in float64 are converted once instead of at every update.
_HELD_BYTES = 64 * 1024**2
# Up to this many columns a compiled loop is faster than a matrix product.
_FEW_CLASSES = 64
# A label's probability comes from e = p - 1, whose last digit is worth twice this.
_LEAST_LABEL_PROBABILITY = 2.0**-25
# Smaller errors, squared or times small features, could become 0.
_LEAST_ERROR = 1e-150


@built_in(
    summary="gradient steps that lower the validation loss the most",
    paper='Killamsetty et al. 2021, "GLISTER" (arXiv:2012.10630)',
    cost=Cost(Growth.ITERATIONS, "r N C d"),
    kinds=CLASSES,
)
def glister(
    layer: LastLayer,
    validation: ValidationSignals,
    budget: int,
    *,
    rounds: Annotated[int, Field(ge=0), "updates of the layer; 0: after every pick (exact)"] = 15,
    step: Annotated[
        Literal["sum", "mean"],
        "whether the layer steps by the learning rate times the sum of the subset's gradients, or "
        "times their mean",
    ] = "sum",
    learning_rate: Annotated[float, Field(gt=0), "of that step"] = 0.05,
) -> Selection:
    """Keep the `budget` examples with the largest gains."""
    num_updates = min(rounds or budget, budget) - 1
    rate = learning_rate if step == "sum" else learning_rate / budget
    objective = GlisterObjective(layer, validation, rate, num_updates)
    if rounds == 0:
        return unweighted(_exactly(objective, budget))
    chosen: list[Tensor] = []
    num_left = budget
    for size in round_sizes(budget, rounds):
        gains_N = objective.gains(objective.gradient())
        new = keep_largest(comparable(gains_N), size).indices_K
        num_left -= size
        objective.add(new, update=num_left > 0)
        chosen.append(new)
    return unweighted(torch.cat(chosen))


def round_sizes(budget: int, rounds: int) -> Iterator[int]:
    """Examples per round, shrinking linearly: `budget` in all, at least one each."""
    num_rounds = min(rounds, budget)
    spare, total = budget - num_rounds, num_rounds * (num_rounds + 1) // 2
    ahead = 0
    for share in range(num_rounds, 0, -1):
        given = spare * ahead // total
        ahead += share
        yield 1 + spare * ahead // total - given


def _exactly(objective: GlisterObjective, budget: int) -> Tensor:
    """Pick the largest gain each time, by bounds from the gains at a reference gradient."""
    norms_N = squared_norms(objective.gradients).sqrt_()
    max_candidates = int(_WORTH_GATHERING * len(norms_N))
    reference = objective.gradient()
    gains_N = objective.gains(reference)
    best = int(comparable(gains_N).argmax())
    chosen: list[int] = []
    while True:
        chosen.append(best)
        gains_N[best] = -math.inf
        if len(chosen) == budget:
            return torch.tensor(chosen, device=norms_N.device)
        objective.add(torch.tensor([best], device=norms_N.device), update=True)
        gradient = objective.gradient()
        drift = gradient.minus(reference).norm + _ROUNDING * gradient.norm
        bounds_N = gains_N + (1 + _ROUNDING) * drift * norms_N
        probes_B = bounds_N.topk(min(_NUM_PROBES, len(bounds_N))).indices
        known = float(objective.gains(gradient, probes_B).max())
        candidates_B = torch.nonzero(bounds_N >= known - _ROUNDING * abs(known)).flatten()
        if 0 < len(candidates_B) <= max_candidates:
            candidate_gains_B = objective.gains(gradient, candidates_B)
            best = int(candidates_B[comparable(candidate_gains_B).argmax()])
        else:
            reference, gains_N = gradient, objective.gains(gradient)
            best = int(comparable(gains_N).argmax())


def comparable(gains_B: Tensor) -> Tensor:
    """Gains in float32, scaled by a power of 2: gains that differ by rounding tie."""
    largest = float(gains_B.masked_fill(gains_B.isinf(), 0.0).abs().max())
    exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
    return (gains_B * 2.0 ** -max(exponent, -1000)).float()


class GlisterObjective:
    """Gains of all examples, at the layer after the step on the chosen ones."""

    def __init__(
        self, layer: LastLayer, validation: LastLayer, rate: float, num_updates: int
    ) -> None:
        """Start with nothing chosen; `rate` multiplies the sum of the chosen gradients."""
        self.gradients, self._layer = _cheapest_form(
            gradients_of(layer), layer_at(validation), num_updates
        )
        self._rate = rate
        self._is_chosen_N = torch.zeros(len(layer), dtype=torch.bool, device=self.gradients.device)

    def gradient(self) -> LayerGradient:
        """`rate` times the gradient of the validation loss."""
        return validation_gradient(self._layer).scaled(self._rate)

    def gains(self, gradient: LayerGradient, rows_B: Tensor | slice = slice(None)) -> Tensor:
        """The gains of some examples at a gradient, -inf for chosen ones; B float64."""
        gains_B = alignments(self.gradients[rows_B], gradient)
        return gains_B.masked_fill_(self._is_chosen_N[rows_B], -math.inf)

    def add(self, new: Tensor, *, update: bool) -> None:
        """Choose examples, and step the layer on them if it is used again."""
        self._is_chosen_N[new] = True
        if update:
            self._layer = step(self._layer, self.gradients[new], self._rate)


def _cheapest_form(
    gradients: Vectors, layer: ValidationLayer, num_updates: int
) -> tuple[Vectors, ValidationLayer]:
    num_classes, num_features = gradients[:0].outer_NC.shape[1], gradients.features_ND.shape[1]
    num_validation = len(layer.labels_V)
    work_saved = num_updates * num_classes * (num_features - num_validation)
    fits = 8 * len(gradients) * num_validation <= _HELD_BYTES
    if work_saved > num_validation * num_features and fits:
        gradients, layer = in_validation_span(gradients, layer)
    held_bytes = 8 * len(gradients) * gradients.width
    if held_bytes <= _HELD_BYTES and not _aligns_compiled(gradients):
        gradients = gradients.to(torch.float64)
    return gradients, layer


@dataclass(frozen=True)
class ValidationLayer:
    """Logits on the validation examples, up to a shift per row, float64; `bias` is 1 or 0."""

    features_VD: Tensor
    logits_VC: Tensor
    labels_V: Tensor
    bias: float


def layer_at(validation: LastLayer) -> ValidationLayer:
    """The layer behind validation signals; zero probabilities become the largest such value."""
    is_label_VC = functional.one_hot(validation.labels_N, validation.errors_NC.shape[1])
    least_C = torch.tensor(
        [torch.finfo(torch.float32).tiny, _LEAST_LABEL_PROBABILITY],
        dtype=torch.float64,
        device=is_label_VC.device,
    )
    probabilities_VC = probabilities_of(validation.errors_NC, validation.labels_N, torch.float64)
    return ValidationLayer(
        features_VD=validation.features_ND.double(),
        logits_VC=probabilities_VC.maximum(least_C[is_label_VC]).log(),
        labels_V=validation.labels_N,
        bias=float(validation.has_bias),
    )


def step(layer: ValidationLayer, chosen: Vectors, learning_rate: float) -> ValidationLayer:
    """The layer after one gradient step on the sum of the chosen examples' losses."""
    errors_SC, features_SD = chosen.outer_NC.double(), chosen.features_ND.double()
    # In the cheaper order: first the kernel h_v . h_i of few examples, or the weights.
    moved_VC = torch.linalg.multi_dot([layer.features_VD, features_SD.T, errors_SC])
    if layer.bias:
        moved_VC += errors_SC.sum(dim=0)
    return replace(layer, logits_VC=layer.logits_VC - learning_rate * moved_VC)


def validation_gradient(layer: ValidationLayer) -> LayerGradient:
    """The mean validation loss's gradient by the layer, scaled so that gains do not tie at 0."""
    errors_VC = layer.logits_VC.softmax(dim=-1)
    # The label's p - 1 is minus the sum of all others, which keeps a confident example's digits.
    errors_VC.scatter_(1, layer.labels_V[:, None], 0.0)
    if float(errors_VC.max()) < _LEAST_ERROR:
        logs_VC = layer.logits_VC.log_softmax(dim=-1)
        logs_VC.scatter_(1, layer.labels_V[:, None], -torch.inf)
        # A single class has no errors.
        errors_VC = (logs_VC - logs_VC.max().nan_to_num(neginf=0.0)).exp()
    errors_VC.scatter_(1, layer.labels_V[:, None], -errors_VC.sum(dim=-1, keepdim=True))
    errors_VC /= len(errors_VC)
    bias_C = errors_VC.sum(dim=0) * layer.bias
    return LayerGradient(errors_VC.T @ layer.features_VD, bias_C)


def alignments(gradients: Vectors, gradient: LayerGradient) -> Tensor:
    """<g_i, gradient> of every example; N float64."""
    if not _aligns_compiled(gradients):
        return plain_alignments(gradients, gradient, block_bytes=CACHED_BYTES)
    from lipt.core.selection.compiled_loops import alignments_compiled  # noqa: PLC0415 - an extra

    factors = (gradients.outer_NC, gradients.features_ND, gradient.weight_CD, gradient.bias_C)
    return torch.from_numpy(
        alignments_compiled(*(factor.contiguous().numpy() for factor in factors))
    )


def _aligns_compiled(gradients: Vectors) -> bool:
    errors_NC, features_ND = gradients.outer_NC, gradients.features_ND
    return (
        can_compile(features_ND.device)
        and errors_NC.shape[1] <= _FEW_CLASSES
        and errors_NC.dtype == features_ND.dtype
        and features_ND.dtype in (torch.float32, torch.float64)
    )


def in_validation_span(
    gradients: Vectors, layer: ValidationLayer
) -> tuple[Vectors, ValidationLayer]:
    """Both in float64 coordinates of the span of the validation rows [h_v, 1], without a bias."""
    basis_DQ = torch.linalg.qr(with_bias(layer.features_VD, layer.bias).T).Q
    features_NQ = _projected(gradients.features_ND, gradients.bias, basis_DQ)
    features_VQ = _projected(layer.features_VD, layer.bias, basis_DQ)
    return (
        replace(gradients, features_ND=features_NQ, bias=0.0),
        replace(layer, features_VD=features_VQ, bias=0.0),
    )


def _projected(features_ND: Tensor, bias: float, basis_FQ: Tensor) -> Tensor:
    num_features, num_dimensions = features_ND.shape[1], basis_FQ.shape[1]
    features_NQ = basis_FQ.new_empty(len(features_ND), num_dimensions)
    row_bytes = 8 * (num_features + num_dimensions)
    for rows in row_blocks(len(features_ND), row_bytes, CACHED_BYTES):
        features_NQ[rows] = features_ND[rows].double() @ basis_FQ[:num_features]
    if bias:
        features_NQ += basis_FQ[num_features]
    return features_NQ
