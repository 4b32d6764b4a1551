"""Curvature: the diagonal of the last layer's Hessian, estimated by Hutchinson's method.

Cross-entropy's Hessian by the last layer is mean_i (diag(p_i) - p_i p_i^T) (x) h_i h_i^T, with
the 1 of the bias in h_i. Its product with a matrix Z follows from the factors alone, as
mean_i ((diag(p_i) - p_i p_i^T) Z h_i) h_i^T. For Z of random signs the expected value of
Z * (Hessian Z) is the Hessian's diagonal.

Shapes: N examples, B of a batch, C classes, F features, with the 1 of the bias.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.determinism.seeding import derive_generator
from lipt.coordinator.selection.gradients.vectors import with_bias
from lipt.coordinator.signals.blocks import row_blocks
from lipt.coordinator.signals.signals import Signals, probabilities_of

BATCH_SIZE = 256


def hessian_product(probabilities_BC: Tensor, features_BF: Tensor, vector_CF: Tensor) -> Tensor:
    """The Hessian of the mean loss, times a matrix of the last layer's shape; C x F."""
    along_BC = probabilities_BC * (features_BF @ vector_CF.T)
    along_BC -= probabilities_BC * along_BC.sum(dim=-1, keepdim=True)
    return along_BC.T @ features_BF / len(features_BF)


def averaged_diagonal(
    signals: Signals, *, decay: float, seed: int, batch_size: int = BATCH_SIZE
) -> Tensor:
    """An exponential average of estimates of the diagonal, one per batch; C x F float32.

    Batches are in random order and each has its own probe. The average is corrected for
    its start at zero, so its weights sum to 1 and it is unbiased.

    Args:
        signals: of all examples.
        decay: in [0, 1), how much of the average stays at the next batch.
        seed: of order and probes.
        batch_size: examples per probe.
    """
    generator = derive_generator(seed, "hessian-diagonal")
    device = signals.features_ND.device
    order_N = torch.randperm(len(signals), generator=generator)
    num_classes = signals.errors_NC.shape[1]
    num_features = signals.features_ND.shape[1] + int(signals.has_bias)
    average_CF = torch.zeros(num_classes, num_features, device=device)
    total = 0.0
    for rows in row_blocks(len(signals), 1, batch_size):
        signs_CF = torch.randint(0, 2, average_CF.shape, generator=generator)
        signs_CF = signs_CF.mul_(2).sub_(1).float().to(device)
        batch = signals.take(order_N[rows].to(device))
        product_CF = hessian_product(
            probabilities_of(batch.errors_NC, batch.labels_N),
            with_bias(batch.features_ND, float(signals.has_bias)),
            signs_CF,
        )
        average_CF.mul_(decay).addcmul_(signs_CF, product_CF, value=1 - decay)
        total = decay * total + (1 - decay)
    return average_CF / total
