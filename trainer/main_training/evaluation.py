"""Accuracy of the model in training, on images without augmentation.

Shapes: N examples, B of a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lipt.common.data import Dataset
from lipt.common.evaluation_mode import evaluation_mode
from lipt.common.learner_task import ImageFormat
from lipt.common.preprocess import to_model_input

# On CPUs twice as fast as 512, whose activations fall out of the caches.
_BATCH_SIZE = 256


def accuracy(
    model: nn.Module,
    dataset: Dataset,
    ids_N: Tensor,
    image: ImageFormat,
    device: torch.device,
    memory_format: torch.memory_format,
    *,
    bfloat16: bool = False,
) -> float:
    """Share of examples whose largest logit is their label's.

    Args:
        model: on `device`; its training flags are restored.
        dataset: where images and labels come from.
        ids_N: which of its examples, int64, at least one.
        image: how images are normalized.
        device: where the model is.
        memory_format: the layout of the model's inputs.
        bfloat16: whether the model runs under bfloat16 autocast, as in such a training.

    Returns:
        In [0, 1].
    """
    num_correct = torch.zeros((), dtype=torch.int64, device=device)
    with evaluation_mode(model), torch.inference_mode():
        for ids_B in torch.split(ids_N, _BATCH_SIZE):
            inputs_BCHW = to_model_input(dataset.images(ids_B), image, device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                logits_BC = model(inputs_BCHW.contiguous(memory_format=memory_format))
            labels_B = dataset.labels_N[ids_B].to(device)
            num_correct += (logits_BC.argmax(dim=-1) == labels_B).sum()
    return int(num_correct) / len(ids_N)
