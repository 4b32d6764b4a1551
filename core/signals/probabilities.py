"""Probabilities: a user's own out-of-sample class probabilities, N x C, in place of a head's.

The model that gives them must not have been trained on the example: cross-validation makes them,
as in scikit-learn's `cross_val_predict(..., method="predict_proba")`. cleanlab's name of them is
`pred_probs`.

Shapes: N examples, B of a block, C classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lipt.common.errors import ProbabilitiesError
from lipt.common.text import listed
from lipt.core.passes import row_blocks
from lipt.data.dataset import Dataset
from lipt.data.targets.kinds import TargetKind

# The tensor's name in a file.
PROBABILITIES = "pred_probs"
# Distance of a row's sum from 1 that rounding to float16 leaves.
_TOLERANCE = 0.01
_MOST_NAMED = 10


def read_probabilities(given: Any, dataset: Dataset) -> Tensor:
    """Probabilities of every example of the source, float32 N x C; each row sums to 1.

    given: an array, a tensor, a data frame or lists. ProbabilitiesError for other shapes or values.
    """
    if dataset.target.kind is not TargetKind.CLASS:
        raise ProbabilitiesError(
            "pred_probs are probabilities of one class per example, and the data is "
            f"{dataset.target.kind.words} data. Leave pred_probs out."
        )
    try:
        values = given.detach().cpu() if isinstance(given, Tensor) else np.array(given, float)
        given_NC = torch.as_tensor(values).to(torch.float32, copy=True)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ProbabilitiesError(
            f"pred_probs are no numbers ({error}). Give an array of N x C probabilities."
        ) from error
    names = dataset.class_names
    in_order = f"{len(names)} classes, in this order: {listed(names, _MOST_NAMED)}"
    shape = dataset.num_ids, len(names)
    if given_NC.shape != shape:
        sizes = " x ".join(map(str, given_NC.shape))
        raise ProbabilitiesError(
            f"pred_probs are {sizes}, and the data has {shape[0]} examples of {in_order}. Give a "
            "row for each example and a column for each class."
        )
    # A frame's columns may have names.
    columns = list(map(str, getattr(given, "columns", names)))
    if set(columns) == set(names) and columns != list(names):
        raise ProbabilitiesError(
            f"the columns of pred_probs are {listed(columns, _MOST_NAMED)}, and the data has "
            f"{in_order}. Bring the columns into this order."
        )
    for rows in row_blocks(*shape):
        given_NC[rows] = _checked(given_NC[rows], rows.start, names)
    return given_NC


def _checked(block_BC: Tensor, start: int, names: tuple[str, ...]) -> Tensor:
    outside_BC = ~((block_BC >= 0) & (block_BC <= 1 + _TOLERANCE))
    sums_B1 = block_BC.double().sum(dim=1, keepdim=True)
    for row in torch.nonzero(outside_BC.any(dim=1)).flatten()[:1].tolist():
        column = int(outside_BC[row].int().argmax())
        raise ProbabilitiesError(
            f"row {start + row} of pred_probs has {float(block_BC[row, column]):g} for class "
            f"{names[column]}. Give probabilities: a softmax of logits, or predict_proba's output."
        )
    for row in torch.nonzero((sums_B1[:, 0] - 1).abs() > _TOLERANCE).flatten()[:1].tolist():
        raise ProbabilitiesError(
            f"row {start + row} of pred_probs sums to {float(sums_B1[row]):.4g} instead of 1. Give "
            "probabilities of classes that exclude each other: a softmax, not sigmoids."
        )
    return (block_BC / sums_B1).float()
