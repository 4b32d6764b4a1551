"""Last layer: where it is after a gradient step, and the validation gradient there.

A step of size eta on examples S moves the last layer by -eta sum_S e_i (x) [h_i, 1]. The
validation logits follow without the layer itself: z_v -= eta sum_S e_i (h_i . h_v + 1),
from z_v = log p_v, which differs from the true logits by a shift that softmax does not
see. So nothing but errors and features is needed, and the largest things made are C x D
and V x C.

In float64 throughout: what differs by rounding alone then compares equal in float32,
so equal examples tie wherever they stand and on any block size.

Shapes: N training examples, V validation examples, S of a step, C classes, D features,
Q dimensions of the validation features' span, B rows of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from lipt.common.signals.blocks import row_blocks
from lipt.core.selection.compiling import can_compile
from lipt.core.selection.gradients.vectors import (
    CACHED_BYTES,
    LayerGradient,
    Vectors,
    with_bias,
)
from lipt.core.selection.gradients.vectors import alignments as plain_alignments
from lipt.core.signals.signals import Signals, probabilities_of

# Up to this many columns a compiled loop is faster than a matrix product.
_FEW_CLASSES = 64
# A label's probability is read off e = p - 1, whose last digit is worth twice this.
_LEAST_LABEL_PROBABILITY = 2.0**-25
# Smaller errors, squared or times small features, could become 0.
_LEAST_ERROR = 1e-150


@dataclass(frozen=True)
class LastLayer:
    """A last layer, by what it says of the validation examples.

    features_VD: float64.
    logits_VC: float64, up to a shift of each row.
    labels_V: int64.
    bias: the 1 in [h, 1], or 0.
    """

    features_VD: Tensor
    logits_VC: Tensor
    labels_V: Tensor
    bias: float


def last_layer_at(validation: Signals) -> LastLayer:
    """The layer whose errors and features the validation signals are.

    Probabilities that were rounded to zero get the largest value that rounds to it.
    """
    is_label_VC = functional.one_hot(validation.labels_N, validation.errors_NC.shape[1])
    least_C = torch.tensor(
        [torch.finfo(torch.float32).tiny, _LEAST_LABEL_PROBABILITY],
        dtype=torch.float64,
        device=is_label_VC.device,
    )
    probabilities_VC = probabilities_of(validation.errors_NC, validation.labels_N, torch.float64)
    return LastLayer(
        features_VD=validation.features_ND.double(),
        logits_VC=probabilities_VC.maximum(least_C[is_label_VC]).log(),
        labels_V=validation.labels_N,
        bias=float(validation.has_bias),
    )


def step(layer: LastLayer, chosen: Vectors, learning_rate: float) -> LastLayer:
    """The layer after one gradient step on the sum of the chosen examples' losses."""
    errors_SC, features_SD = chosen.outer_NC.double(), chosen.features_ND.double()
    # In the cheaper order: first the kernel h_v . h_i of few examples, or the weights.
    moved_VC = torch.linalg.multi_dot([layer.features_VD, features_SD.T, errors_SC])
    if layer.bias:
        moved_VC += errors_SC.sum(dim=0)
    return replace(layer, logits_VC=layer.logits_VC - learning_rate * moved_VC)


def validation_gradient(layer: LastLayer, *, raised: bool = False) -> LayerGradient:
    """The gradient of the mean validation loss by the layer: the mean of e_v (x) [h_v, 1].

    Args:
        layer: where it is.
        raised: for who asks for its direction alone: near the end of what float64 can tell
            it is multiplied by what makes the largest error 1.
    """
    errors_VC = layer.logits_VC.softmax(dim=-1)
    # p - 1 of the label as minus all the others: of a confident example nothing else is left.
    errors_VC.scatter_(1, layer.labels_V[:, None], 0.0)
    if raised and float(errors_VC.max()) < _LEAST_ERROR:
        logs_VC = layer.logits_VC.log_softmax(dim=-1)
        logs_VC.scatter_(1, layer.labels_V[:, None], -torch.inf)
        # A single class has no errors at all.
        errors_VC = (logs_VC - logs_VC.max().nan_to_num(neginf=0.0)).exp()
    errors_VC.scatter_(1, layer.labels_V[:, None], -errors_VC.sum(dim=-1, keepdim=True))
    errors_VC /= len(errors_VC)
    bias_C = errors_VC.sum(dim=0) * layer.bias
    return LayerGradient(errors_VC.T @ layer.features_VD, bias_C)


def alignments(gradients: Vectors, gradient: LayerGradient) -> Tensor:
    """<g_i, gradient> of every example, compiled where that is faster; N float64."""
    if not aligns_compiled(gradients):
        return plain_alignments(gradients, gradient, block_bytes=CACHED_BYTES)
    from lipt.core.selection.compiled_loops import (  # noqa: PLC0415 - an extra
        alignments_compiled,
    )

    factors = (gradients.outer_NC, gradients.features_ND, gradient.weight_CD, gradient.bias_C)
    return torch.from_numpy(
        alignments_compiled(*(factor.contiguous().numpy() for factor in factors))
    )


def aligns_compiled(gradients: Vectors) -> bool:
    """Whether `alignments` runs in machine code, at its best on features as they are stored."""
    errors_NC, features_ND = gradients.outer_NC, gradients.features_ND
    return (
        can_compile(features_ND.device)
        and errors_NC.shape[1] <= _FEW_CLASSES
        and errors_NC.dtype == features_ND.dtype
        and features_ND.dtype in (torch.float32, torch.float64)
    )


def in_validation_span(gradients: Vectors, layer: LastLayer) -> tuple[Vectors, LastLayer]:
    """Both in coordinates of the span of the validation rows [h_v, 1].

    The validation gradient, and how far a step moves a validation logit, know a training
    feature only by its products with validation features. An orthonormal basis of their
    span keeps these, in Q = V dimensions in the place of D. The 1 goes into the basis.

    Args:
        gradients: of the training examples.
        layer: on fewer validation examples than there are features.

    Returns:
        Both, with float64 features and without a bias.
    """
    basis_DQ = torch.linalg.qr(with_bias(layer.features_VD, layer.bias).T).Q
    features_NQ = _projected(gradients.features_ND, gradients.bias, basis_DQ)
    features_VQ = _projected(layer.features_VD, layer.bias, basis_DQ)
    return (
        replace(gradients, features_ND=features_NQ, bias=0.0),
        replace(layer, features_VD=features_VQ, bias=0.0),
    )


def _projected(features_ND: Tensor, bias: float, basis_FQ: Tensor) -> Tensor:
    """[h_i, 1] in the coordinates of a basis; N x Q float64."""
    num_features, num_dimensions = features_ND.shape[1], basis_FQ.shape[1]
    features_NQ = basis_FQ.new_empty(len(features_ND), num_dimensions)
    row_bytes = 8 * (num_features + num_dimensions)
    for rows in row_blocks(len(features_ND), row_bytes, CACHED_BYTES):
        features_NQ[rows] = features_ND[rows].double() @ basis_FQ[:num_features]
    if bias:
        features_NQ += basis_FQ[num_features]
    return features_NQ
