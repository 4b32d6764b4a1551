"""Norms of the gradients of all parameters, one per example: GraNd as its paper defines it.

`torch.func` takes the gradient of each example's own loss, over a chunk of them at
once where that pays. The model is in evaluation mode, so batch norm does not couple them.

Shapes: N examples, B of a chunk.
Source: Paul et al. 2021, "Deep Learning on a Data Diet" (arXiv:2107.07075).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from lipt.common.data import Dataset
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.images.formats import ImageFormat
from lipt.common.images.model_input import to_model_input
from lipt.common.models.evaluation_mode import evaluation_mode
from lipt.coordinator.signals.finite import require_finite_rows

# B copies of all gradients are in memory at once.
_CHUNK_BYTES = 2 * 1024**3
_MAX_CHUNK_SIZE = 256
_SMALL_CPU_MODEL = 1_000_000
_CPU_CHUNK_SIZE = 16


def default_chunk_size(model: nn.Module, device: torch.device) -> int:
    """How many gradients are taken at once.

    Convolutions under `vmap` become grouped ones. On a CPU that measured 2.5 times as
    slow as one by one with a ResNet-18, where they take the time, and 2.5 times as fast
    with a ResNet-8, where the calls around them do.
    """
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if device.type == "cpu":
        return _CPU_CHUNK_SIZE if num_parameters < _SMALL_CPU_MODEL else 1
    return max(1, min(_MAX_CHUNK_SIZE, _CHUNK_BYTES // (4 * num_parameters)))


def full_gradient_norms(
    model: nn.Module,
    dataset: Dataset,
    image: ImageFormat,
    *,
    device: torch.device,
    on_progress: Callable[[int, int], None],
    chunk_size: int | None = None,
    cpu_threads: int = 1,
    ids: Tensor | None = None,
) -> Tensor:
    """The Euclidean norm of each example's gradient by all trainable parameters.

    Args:
        model: on `device`. Not modified, its training flags are restored.
        dataset: where images and labels come from.
        image: how its images are normalized.
        device: where the model is.
        on_progress: told after every chunk how many of the N examples are done.
        chunk_size: gradients taken at once; `default_chunk_size` where None.
        cpu_threads: the sums of a backward pass depend on it.
        ids: N int64 ids, one per row of the answer. All examples where None.

    Returns:
        float32, N, on the CPU.

    Raises:
        SignalsError: a gradient is not finite; names the first ids.
    """
    ids_N = torch.arange(len(dataset)) if ids is None else ids
    size = default_chunk_size(model, device) if chunk_size is None else chunk_size
    norms_N = torch.empty(len(ids_N))
    with evaluation_mode(model), pinned_kernels(cpu_threads):
        for start in range(0, len(ids_N), size):
            rows = slice(start, min(start + size, len(ids_N)))
            inputs_BCHW = to_model_input(dataset.images(ids_N[rows]), image, device)
            labels_B = dataset.labels_N[ids_N[rows]].to(device)
            norms_B = per_example_norms(model, inputs_BCHW, labels_B)
            require_finite_rows(norms_B.isfinite(), ids_N[rows], "gradients")
            norms_N[rows] = norms_B.cpu()
            on_progress(rows.stop, len(ids_N))
    return norms_N


def per_example_norms(model: nn.Module, inputs_BCHW: Tensor, labels_B: Tensor) -> Tensor:
    """The norms for one chunk of inputs of a model in evaluation mode; float32, B."""
    parameters = {
        name: tensor.detach() for name, tensor in model.named_parameters() if tensor.requires_grad
    }

    def loss(weights: dict[str, Tensor], input_CHW: Tensor, label: Tensor) -> Tensor:
        # What is not among the weights, functional_call takes from the model.
        logits_1C = functional_call(model, weights, (input_CHW[None],))
        return functional.cross_entropy(logits_1C.float(), label[None])

    def norm(input_CHW: Tensor, label: Tensor) -> Tensor:
        gradients = grad(loss)(parameters, input_CHW, label)
        # In float64: a sum over millions of parameters.
        squares = [gradient.double().square().sum() for gradient in gradients.values()]
        return torch.stack(squares).sum().sqrt().float()

    if len(labels_B) == 1:
        return norm(inputs_BCHW[0], labels_B[0])[None]
    norms_B: Tensor = vmap(norm)(inputs_BCHW, labels_B)
    return norms_B
