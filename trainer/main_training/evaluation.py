"""Accuracy of the model in training, on images without augmentation.

Shapes: N examples, B of a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipt.common.data import Dataset
from lipt.common.models.evaluation_mode import evaluation_mode
from lipt.trainer.main_training.forward import ForwardPass

# On CPUs twice as fast as 512, whose activations fall out of the caches.
_BATCH_SIZE = 256


def accuracy(model: nn.Module, dataset: Dataset, ids_N: Tensor, forward_pass: ForwardPass) -> float:
    """Share of examples whose largest logit is their label's.

    Args:
        model: its training flags are restored.
        dataset: where images and labels come from.
        ids_N: which of its examples, int64, at least one.
        forward_pass: how images go through the model, as in its training.

    Returns:
        In [0, 1].
    """
    num_correct = torch.zeros((), dtype=torch.int64, device=forward_pass.device)
    with evaluation_mode(model), torch.inference_mode():
        for ids_B in torch.split(ids_N, _BATCH_SIZE):
            logits_BC = forward_pass(model, dataset.images(ids_B))
            labels_B = dataset.labels_N[ids_B].to(forward_pass.device)
            num_correct += (logits_BC.argmax(dim=-1) == labels_B).sum()
    return int(num_correct) / len(ids_N)
