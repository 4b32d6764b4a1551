"""Alignments in machine code: products of factored gradients with one gradient.

A matrix product with few columns is what BLAS is worst at: with 10 classes it reaches a
sixth of what this loop does, and wants the features in double precision besides.

Shapes: N examples, C classes, D features.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from lipt.core.selection.compiling import compiled


# Sums in any order, so that many terms are added at a time: they are float64 and compared in
# float32, where the order cannot be seen.
@partial(compiled, fastmath={"reassoc", "contract", "nsz"})
def alignments_compiled(
    errors_NC: NDArray[np.float32],
    features_ND: NDArray[np.float32],
    weight_CD: NDArray[np.float64],
    bias_C: NDArray[np.float64],
) -> NDArray[np.float64]:
    """sum_c e_c (w_c . h + b_c) of every example, summed in float64; N."""
    num_examples, num_features = features_ND.shape
    aligned_N = np.empty(num_examples, np.float64)
    for example in range(num_examples):
        total = 0.0
        for label in range(len(bias_C)):
            product = 0.0
            for feature in range(num_features):
                product += weight_CD[label, feature] * np.float64(features_ND[example, feature])
            total += np.float64(errors_NC[example, label]) * (product + bias_C[label])
        aligned_N[example] = total
    return aligned_N
