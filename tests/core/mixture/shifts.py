"""Merged learners of a model with one number."""

from __future__ import annotations

import torch
from torch import nn

from lipt.common.tensor_files import Weights
from lipt.core.pretraining.merged import Merged, added_by
from lipt.data.targets.values import Regression

NUMBER = Regression((0.0,), (1.0,))


def shifts(*values: float, targets: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> Merged:
    """A model whose output is its bias; each learner adds one number to it."""
    model = nn.Sequential(nn.Linear(1, 1))
    initial = {"0.weight": torch.zeros(1, 1), "0.bias": torch.zeros(1)}
    learners: list[Weights] = [{**initial, "0.bias": torch.tensor([value])} for value in values]
    targets_N1 = torch.tensor(targets)[:, None]
    inputs = [torch.zeros(len(targets), 1)]
    return Merged(model, initial, added_by(initial, learners), inputs, NUMBER, targets_N1)
