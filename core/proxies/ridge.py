"""Ridge head: a linear head in closed form, with exact leave-one-out outputs.

It minimizes sum_i w_i |y_i - b - x_i W|^2 + lambda |W|^2 over one-hot targets y, with weights w_i
that balance classes of enough examples. For labels and numbers y are the labels as 0 and 1, or the
standardized numbers, and all weights are equal. With Z the features minus their weighted mean,
scaled, and its rows times sqrt(w_i),

    G = Z'Z = U diag(s) U',  H = Z U,  leverage h_i = w_i / sum w + sum_j H_ij^2 / (s_j + lambda)
    y_i - yhat_-i = (y_i - yhat_i) / (1 - h_i)

is the residual of a head fitted without example i. It is exact, except that scale and class weights
use all examples. With fewer examples than features, Z Z' = V diag(s) V' is decomposed instead. Then
1 - h_i and the residual are sums of V_ij lambda / (s_j + lambda), without cancellation.

The decomposition compares all lambdas on a sample. The outputs of all examples follow from a
triangular factor of G + lambda. Sums are in float64, in blocks of a fixed order. Memory is D^2 or
N^2, whichever is smaller, time N D^2. Probabilities use the inverse temperature of the highest
label likelihood.

Shapes: N examples, B of a block, D features, C classes or other outputs T, R = min(N, D), L values
of lambda, M examples of a sample.
Source: hat matrix and leave-one-out residuals, Hastie et al., "The Elements of Statistical
Learning", section 7.10; Guo et al. 2017, "On Calibration of Modern Neural Networks"
(arXiv:1706.04599).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.computation import computation
from lipt.common.errors import ProxyError
from lipt.core.passes import CACHED_ROWS, row_blocks
from lipt.data.dataset import Dataset
from lipt.data.targets.values import MultiLabel, NextTokens, Regression

# Per example: from almost no penalty to a very strong one.
PENALTIES = tuple(10.0 ** (power / 2) for power in range(-8, 5))
# All penalties are compared on this many examples, enough to resolve a point.
_MAX_SAMPLE = 2_000
# Below this 1 - h, only the example itself determines its output.
_NOTHING_LEFT = 1e-10
# Columns of a product computed at once: a triangle of 2,048 then costs 9/16 of the whole.
_PANEL = 256
# With more multiplications, products and decompositions are in float32, blocks of them summed in
# float64. Rounding is about 1e-7 of the largest product, a thousandth of the smallest penalty.
_MOST_EXACT = 7_000_000_000
# Of a float64 copy: it stays in a CPU's cache.
_COPIED_BYTES = 2 * 1024**2
# Smaller classes weigh less: one mistyped label would weigh as much as a class. In 90 settings with
# 1 to 12 labels mistyped in wine, iris, breast cancer and digits, 3,995 right labels are suspected
# to be of the new class if all classes have equal weights, 384 from 8 examples on, 155 from 12, 32
# from 16, 4 from 20. Of rare classes of 3, 5 and 10, 58 of 72 examples are recognized, 2 suspected.
FULL_CLASS = 20
# Above it a label is predicted.
_EVEN = 0.5


@dataclass(frozen=True)
class HeadTargets:
    """Labels or numbers of N examples that a head is fitted to."""

    target: MultiLabel | Regression
    targets_NT: Tensor

    @classmethod
    def of(cls, dataset: Dataset) -> Self | None:
        """The targets of a data set's examples; None if they are classes.

        ProxyError for next tokens.
        """
        given = dataset.rows.targets
        if given is None:
            return None
        if isinstance(given.target, NextTokens):
            raise ProxyError(
                f"{dataset.source} holds texts without labels, to which no head can be fitted. "
                "Name the column of their labels: label=COLUMN."
            )
        return cls(given.target, given.values)

    def take(self, ids_N: Tensor, device: torch.device | str = "cpu") -> Self:
        """The targets of some of the examples, on a device."""
        return type(self)(self.target, self.targets_NT[ids_N].to(device))

    def values(self) -> Tensor:
        """Targets of least squares; N x T float64."""
        if isinstance(self.target, Regression):
            return self.target.learned(self.targets_NT)
        return self.targets_NT.double()

    def score(self, outputs_NT: Tensor) -> float:
        """The target kind's score of a head's outputs for all N; R² of numbers as they are cut."""
        if isinstance(self.target, Regression):
            wanted_NT = self.values()
            squares_NT = (outputs_NT.double() - wanted_NT).square()
            return self.target.score_of([torch.stack([squares_NT, wanted_NT]).cpu()])
        tally = self.target.tally()
        tally.add(outputs_NT - _EVEN, self.targets_NT)
        return tally.score()

    def errors(self, outputs_BT: Tensor, rows: slice) -> Tensor:
        """The residuals of a head's outputs for some rows; B x T float32."""
        targets_BT = self.targets_NT[rows]
        if isinstance(self.target, Regression):
            return self.target.residuals(outputs_BT, targets_BT)
        return (outputs_BT.double().clamp(0, 1) - targets_BT).float()


@dataclass(frozen=True)
class LeaveOneOut:
    """Outputs of a ridge head for held-out examples.

    outputs_NC: float32, about 1 for the head's class and 0 for others; not probabilities. All 0 for
    an example that alone determines its output.
    accuracy: mean over classes, weighted by confidence; for other targets, the kind's own score.
    penalty: the chosen lambda per example.
    """

    outputs_NC: Tensor
    accuracy: float
    penalty: float


def leave_one_out(
    features_ND: Tensor,
    labels_N: Tensor,
    num_classes: int,
    *,
    generator: torch.Generator,
    confidence_N: Tensor | None = None,
    head_targets: HeadTargets | None = None,
    penalties: Sequence[float] = PENALTIES,
    on_progress: Callable[[int, int], None] = lambda *_: None,
) -> LeaveOneOut:
    """Fit the head, with lambda of the best leave-one-out accuracy on a sample.

    Classes have equal weights, their examples in proportion to `confidence_N`, above 0.
    `head_targets` replaces labels and confidence. Penalties are lambda over the sum of the
    weights, ascending.
    """
    num_examples, num_features = features_ND.shape
    if not num_examples:
        raise ValueError("there are no examples to fit a head to")
    if head_targets is None:
        weights_N, values_NC = class_weights(labels_N, confidence_N), None
    else:
        weights_N = torch.ones_like(labels_N, dtype=torch.float64)
        num_classes, values_NC = head_targets.target.num_outputs, head_targets.values()
    scaling = scaling_of(features_ND, weights_N)
    rows = _Rows(features_ND, labels_N, weights_N, scaling, num_classes, values_NC)
    fit = _dual if num_examples < num_features else _primal
    heads = fit(rows, lambda done: on_progress(done, 2 * num_examples))
    lambdas_L = weights_N.new_tensor(penalties) * num_examples
    sample_M = torch.randperm(num_examples, generator=generator)[:_MAX_SAMPLE].sort().values
    residuals = heads.of_each(lambdas_L)
    scores_L = _scores_of(rows, residuals, sample_M.to(labels_N.device), lambdas_L)
    # The largest of the best lambdas: the simplest head.
    best = int(torch.nonzero(scores_L == scores_L.max()).max())
    residuals = heads.of_one(lambdas_L[best : best + 1])
    outputs_NC = torch.empty(num_examples, num_classes, device=labels_N.device)
    for ids_B in rows.blocks():
        outputs_BLC = _outputs(rows, residuals, ids_B)
        outputs_NC[ids_B] = outputs_BLC[:, 0].float()
        on_progress(num_examples + int(ids_B[-1]) + 1, 2 * num_examples)
    if head_targets is None:
        accuracy = weighted_accuracy(outputs_NC, labels_N, weights_N)
    else:
        accuracy = head_targets.score(outputs_NC)
    return LeaveOneOut(outputs_NC, accuracy, penalties[best])


@dataclass(frozen=True)
class Scaling:
    """Features' weighted mean and inverse deviation, 0 for constant ones; D, float64."""

    mean_D: Tensor
    inverse_D: Tensor

    def apply_(self, features_BD: Tensor) -> Tensor:
        """The features centred and scaled, in place; B x D."""
        return features_BD.sub_(self.mean_D.to(features_BD)).mul_(self.inverse_D.to(features_BD))


@dataclass(frozen=True)
class _Rows:
    """Weighted examples; values_NC are None for one-hot labels of C classes."""

    features_ND: Tensor
    labels_N: Tensor
    weights_N: Tensor
    scaling: Scaling
    num_classes: int
    values_NC: Tensor | None

    @property
    def precision(self) -> torch.dtype:
        """Precision of products and their decomposition."""
        multiplications = self.features_ND.numel() * min(self.features_ND.shape)
        return torch.float32 if multiplications > _MOST_EXACT else torch.float64

    def scaled(self, ids_B: Tensor) -> Tensor:
        """Centred and scaled features, times the root of the weight; B x D."""
        roots_B = self.weights_N[ids_B].sqrt().to(self.precision)
        copied_BD = self.features_ND[ids_B].to(self.precision)
        return self.scaling.apply_(copied_BD).mul_(roots_B[:, None])

    def targets(self, ids_B: Tensor) -> Tensor:
        if self.values_NC is not None:
            return self.values_NC[ids_B]
        return functional.one_hot(self.labels_N[ids_B], self.num_classes).double()

    def weighted_targets(self, ids_B: Tensor) -> Tensor:
        """Targets minus their mean, times the root of the weight; B x C float64."""
        centred_BC = self.targets(ids_B) - self.mean_target_C
        return centred_BC.mul_(self.weights_N[ids_B].sqrt()[:, None])

    @cached_property
    def mean_target_C(self) -> Tensor:
        if self.values_NC is not None:
            return self.weights_N @ self.values_NC / self.weights_N.sum()
        totals_C = self.weights_N.new_zeros(self.num_classes)
        totals_C.index_add_(0, self.labels_N, self.weights_N)
        return totals_C / self.weights_N.sum()

    def blocks(self) -> Iterator[Tensor]:
        """The ids, in order, in blocks that take up to 64 MiB in float64."""
        every_N = torch.arange(len(self.labels_N), device=self.labels_N.device)
        row_bytes = 8 * self.features_ND.shape[1]
        for rows in row_blocks(len(every_N), row_bytes, most_rows=CACHED_ROWS):
            yield every_N[rows]


# From B ids: weighted residuals y - yhat, B x L x C, and 1 minus the sum over j in h, B x L; both
# for heads that have seen the examples.
_Residuals = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class _Heads:
    """Residuals of the heads of L lambdas, and of the head of a single one."""

    of_each: Callable[[Tensor], _Residuals]
    of_one: Callable[[Tensor], _Residuals]


def _primal(rows: _Rows, on_progress: Callable[[int], None]) -> _Heads:
    num_features, precision = rows.features_ND.shape[1], rows.precision
    panels = [slice(at, at + _PANEL) for at in range(0, num_features, _PANEL)]
    # The lower triangle is not read.
    upper_DD = rows.weights_N.new_zeros(num_features, num_features)
    targets_DC = upper_DD.new_zeros(num_features, rows.num_classes)
    for ids_B in rows.blocks():
        scaled_BD = rows.scaled(ids_B)
        columns = [(panel, _packed(scaled_BD[:, panel].T.contiguous())) for panel in panels]
        for place, (panel, left) in enumerate(columns):
            for other, right in columns[place:]:
                upper_DD[panel, other] += _product(left, right)
        targets_DC += scaled_BD.T @ rows.weighted_targets(ids_B).to(precision)
        on_progress(int(ids_B[-1]) + 1)

    def of_each(lambdas_L: Tensor) -> _Residuals:
        values_R, vectors_DR = _decomposed(upper_DD.to(precision), "U")
        inverse_RL = (values_R.clamp_(min=0)[:, None] + lambdas_L).reciprocal_()
        targets_RC = vectors_DR.T.double() @ targets_DC
        solved_RX = (inverse_RL[:, :, None] * targets_RC[:, None, :]).flatten(start_dim=1)

        def residuals(ids_B: Tensor) -> tuple[Tensor, Tensor]:
            coordinates_BR = _product(rows.scaled(ids_B), vectors_DR.T).double()
            fitted_BLC = (coordinates_BR @ solved_RX).view(len(ids_B), len(lambdas_L), -1)
            left_BL = 1.0 - coordinates_BR.square_() @ inverse_RL
            return rows.weighted_targets(ids_B)[:, None] - fitted_BLC, left_BL

        return residuals

    def of_one(lambda_: Tensor) -> _Residuals:
        """With the inverse of a triangular factor, which takes half of the products."""
        unit_DD = torch.eye(num_features).to(upper_DD)
        factor_DD = torch.linalg.cholesky(upper_DD + lambda_ * unit_DD, upper=True)
        head_DC = torch.cholesky_solve(targets_DC, factor_DD, upper=True).to(precision)
        inverse_DD = torch.linalg.solve_triangular(factor_DD, unit_DD, upper=True).to(precision)

        def residuals(ids_B: Tensor) -> tuple[Tensor, Tensor]:
            scaled_BD = rows.scaled(ids_B)
            residuals_BC = rows.weighted_targets(ids_B) - scaled_BD @ head_DC
            left_B = rows.weights_N.new_ones(len(ids_B))
            for panel in panels:
                part_BD = _product(scaled_BD[:, : panel.stop], inverse_DD[: panel.stop, panel].T)
                left_B -= part_BD.square_().sum(dim=1)
            return residuals_BC[:, None], left_B[:, None]

        return residuals

    return _Heads(of_each, of_one)


def _dual(rows: _Rows, on_progress: Callable[[int], None]) -> _Heads:
    every_N = torch.arange(len(rows.labels_N), device=rows.labels_N.device)
    scaled_ND = rows.scaled(every_N)
    values_R, vectors_NR = _decomposed(_product(scaled_ND, scaled_ND), "L")
    on_progress(len(every_N))
    values_R, vectors_NR = values_R.double().clamp_(min=0), vectors_NR.double()
    targets_RC = vectors_NR.T @ rows.weighted_targets(every_N)

    def of_each(lambdas_L: Tensor) -> _Residuals:
        shares_RL = lambdas_L / (values_R[:, None] + lambdas_L)
        unfitted_RX = (shares_RL[:, :, None] * targets_RC[:, None, :]).flatten(start_dim=1)

        def residuals(ids_B: Tensor) -> tuple[Tensor, Tensor]:
            vectors_BR = vectors_NR[ids_B]
            residuals_BLC = (vectors_BR @ unfitted_RX).view(len(ids_B), len(lambdas_L), -1)
            return residuals_BLC, vectors_BR.square() @ shares_RL

        return residuals

    return _Heads(of_each, of_each)


def _decomposed(symmetric_DD: Tensor, triangle: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors, from the upper ("U") or lower ("L") triangle.

    On one thread: its many small steps make threads wait for each other. On two busy cores 1,797
    rows take 9.0 CPU seconds with two threads, 1.0 with one.
    """
    with computation(1):
        values_R, vectors_DR = torch.linalg.eigh(symmetric_DD, UPLO=triangle)
    return values_R, vectors_DR


def _packed(matrix: Tensor) -> Tensor:
    """A float32 matrix for oneDNN, which multiplies twice as fast on AMD's processors as MKL.

    MKL leaves AVX-512 out there.
    """
    is_there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    fits = is_there and matrix.dtype == torch.float32 and matrix.device.type == "cpu"
    return matrix.to_mkldnn() if fits and not matrix.is_mkldnn else matrix


def _product(left_MD: Tensor, right_ND: Tensor) -> Tensor:
    """The first matrix times the transposed second, packed or not; M x N."""
    product_MN = functional.linear(_packed(left_MD), _packed(right_ND))
    return product_MN.to_dense() if product_MN.is_mkldnn else product_MN


def _outputs(rows: _Rows, residuals: _Residuals, ids_B: Tensor) -> Tensor:
    """Leave-one-out outputs; B x L x C."""
    residuals_BLC, left_BL = residuals(ids_B)
    weights_B = rows.weights_N[ids_B]
    left_BL = left_BL - (weights_B / rows.weights_N.sum())[:, None]
    scale_BL = (left_BL * weights_B.sqrt()[:, None]).reciprocal()
    outputs_BLC = rows.targets(ids_B)[:, None] - residuals_BLC * scale_BL[:, :, None]
    return torch.where(left_BL[:, :, None] > _NOTHING_LEFT, outputs_BLC, 0.0)


def _scores_of(rows: _Rows, residuals: _Residuals, sample_M: Tensor, lambdas_L: Tensor) -> Tensor:
    """Accuracy for classes, share of explained variance for other targets."""
    right_L, left_L = torch.zeros_like(lambdas_L), torch.zeros_like(lambdas_L)
    total = lambdas_L.new_zeros(())
    width = 8 * (len(lambdas_L) * rows.num_classes + rows.features_ND.shape[1])
    for block in row_blocks(len(sample_M), width):
        ids_B = sample_M[block]
        outputs_BLC = _outputs(rows, residuals, ids_B)
        if rows.values_NC is None:
            right_BL = outputs_BLC.argmax(dim=-1) == rows.labels_N[ids_B][:, None]
            right_L += rows.weights_N[ids_B] @ right_BL.double()
        else:
            targets_BC = rows.values_NC[ids_B]
            left_L += (outputs_BLC - targets_BC[:, None]).square().sum(dim=(0, 2))
            total += (targets_BC - rows.mean_target_C).square().sum()
    if rows.values_NC is None:
        return right_L / rows.weights_N[sample_M].sum()
    return 1 - left_L / total.clamp(min=1e-30)


def weighted_accuracy(outputs_NC: Tensor, labels_N: Tensor, weights_N: Tensor) -> float:
    """The weighted share of examples whose largest output is the label's."""
    right_N = (outputs_NC.argmax(dim=-1) == labels_N).double()
    # Rounding may put the sum above 1.
    return min(1.0, float(weights_N @ right_N / weights_N.sum()))


def class_weights(labels_N: Tensor, confidence_N: Tensor | None = None) -> Tensor:
    """Float64 weights of mean 1: equal per full class, within a class as `confidence_N`."""
    if confidence_N is None:
        confidence_N = torch.ones_like(labels_N, dtype=torch.float64)
    # Without examples they are integers.
    totals_C = labels_N.bincount(weights=confidence_N).double()
    full_C = fullness(totals_C)
    scales_C = len(labels_N) * full_C / (full_C.sum() * totals_C.clamp(min=1e-30))
    return scales_C[labels_N] * confidence_N


def fullness(totals_C: Tensor) -> Tensor:
    """The weight of each class: 1 from `FULL_CLASS` examples on, in proportion for fewer.

    Where all classes have fewer, the largest is full.
    """
    largest = float(totals_C.max()) if len(totals_C) else 0.0
    return (totals_C.double() / max(1e-30, min(FULL_CLASS, largest))).clamp(max=1.0)


def scaling_of(features_ND: Tensor, weights_N: Tensor) -> Scaling:
    """Two passes over the features: their mean, then their deviation from it."""
    total = weights_N.sum()
    mean_D = weights_N.new_zeros(features_ND.shape[1])
    for rows, block_BD in float64_blocks(features_ND):
        mean_D += weights_N[rows] @ block_BD
    mean_D /= total
    variance_D = torch.zeros_like(mean_D)
    for rows, block_BD in float64_blocks(features_ND):
        variance_D += weights_N[rows] @ block_BD.sub_(mean_D).square_()
    variance_D /= total
    # Rounding to float32 leaves equal values a deviation of a millionth of the mean.
    inverse_D = torch.where(variance_D > 1e-12 * mean_D.square(), variance_D.rsqrt(), 0.0)
    return Scaling(mean_D, inverse_D)


def float64_blocks(features_ND: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows and a float64 copy of them, which the next block overwrites."""
    num_features, buffer = features_ND.shape[1], features_ND.new_empty(0, dtype=torch.float64)
    for rows in row_blocks(len(features_ND), 8 * num_features, _COPIED_BYTES):
        size = rows.stop - rows.start
        if not len(buffer):
            # New memory for each block would take most of the time.
            buffer = buffer.new_empty(size, num_features)
        yield rows, buffer[:size].copy_(features_ND[rows])


_MIN_INVERSE_TEMPERATURE, _MAX_INVERSE_TEMPERATURE = 1e-3, 1e4
# Relative, of the inverse temperature; and the most steps, with which halving alone is that exact.
_NEAR, _STEPS = 1e-6, 25


def fit_inverse_temperature(outputs_NC: Tensor, labels_N: Tensor, weights_N: Tensor) -> float:
    """The inverse temperature of the softmax under which the labels are most likely."""
    outputs_64 = outputs_NC.double()
    own_N = outputs_64.gather(1, labels_N[:, None]).squeeze(1)

    def slopes(inverse_temperature: float) -> tuple[float, float]:
        """First and second derivative of minus the log-likelihood, which is convex."""
        shares_NC = (inverse_temperature * outputs_64).softmax(dim=-1).mul_(outputs_64)
        mean_N = shares_NC.sum(dim=-1)
        variance_N = shares_NC.mul_(outputs_64).sum(dim=-1) - mean_N.square()
        return float(weights_N @ (mean_N - own_N)), float(weights_N @ variance_N)

    low, high, scale = _MIN_INVERSE_TEMPERATURE, _MAX_INVERSE_TEMPERATURE, 1.0
    last_slope = math.inf
    for _ in range(_STEPS):
        slope, curvature = slopes(scale)
        low, high = (low, scale) if slope > 0 else (scale, high)
        before, is_fast = scale, curvature > 0 and abs(slope) < last_slope / 10
        # Newton's step while these are fast, else half of the way on a logarithmic scale.
        scale, last_slope = before - slope / curvature if is_fast else high, abs(slope)
        if not low < scale < high:
            scale = math.sqrt(low * high)
        if abs(scale - before) <= _NEAR * before:
            break
    return scale
