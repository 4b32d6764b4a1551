"""Gradient matching: how far the gradient of synthetic images is from that of real ones.

Of each layer's weights the gradient is compared by its direction, a row for each output: the sum of
1 - cos over rows and layers. Biases and normalizations, one number per channel, are left out.

Shapes: B examples, R outputs of a layer.
Source: Zhao, Mopuri and Bilen 2021, "Dataset Condensation with Gradient Matching"
(arXiv:2006.05929), equation 10.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def gradients(
    model: nn.Module,
    inputs_B: Tensor,
    labels_B: Tensor,
    weights_B: Tensor,
    *,
    differentiable: bool = False,
) -> tuple[Tensor, ...]:
    """The gradient of the mean cross-entropy by each of the model's weights of two dimensions on.

    Args:
        model: whose output for an example does not depend on the batch's others.
        inputs_B: as the model takes them.
        labels_B: int64.
        weights_B: how much each example counts, their sum above 0.
        differentiable: whether the gradients can themselves be differentiated by `inputs_B`.
    """
    losses_B = functional.cross_entropy(model(inputs_B), labels_B, reduction="none")
    loss = (losses_B * weights_B).sum() / weights_B.sum()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    return torch.autograd.grad(loss, matrices, create_graph=differentiable)


def distance(real: Sequence[Tensor], synthetic: Sequence[Tensor]) -> Tensor:
    """How far two gradients are from each other; 0-d.

    Args:
        real: a tensor for each layer, R first.
        synthetic: of the same shapes.

    Returns:
        0 where all rows point the same way, 2 for each row that points the opposite way. A row
        that is all zeros has no direction, and counts 1.
    """
    similarities = [
        functional.cosine_similarity(one.flatten(1), other.flatten(1))
        for one, other in zip(real, synthetic, strict=True)
    ]
    return torch.cat([1 - rows_R for rows_R in similarities]).sum()
