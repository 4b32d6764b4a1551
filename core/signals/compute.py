"""Signals of one model: each example's error and feature, and the norm of its full gradient.

Gradient norms are GraNd as in its paper: `torch.func` takes the gradient of each example's own
loss, of several at once where that is faster. In evaluation mode batch norm does not couple them.

Shapes: N examples, B of a batch or chunk, C classes, D features.
Source: Paul et al. 2021, "Deep Learning on a Data Diet" (arXiv:2107.07075).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from lipt.common.computation import computation
from lipt.common.tensor_files import TensorSpec
from lipt.core.passes import (
    ERRORS,
    FEATURES,
    KINDS,
    Batches,
    pass_over,
    require_finite_rows,
    value_specs,
)
from lipt.core.signals.signals import STORAGE_LIMITS, Signals
from lipt.core.tasks import ScoredValues
from lipt.data.dataset import Dataset
from lipt.data.inputs.specs import Inputs, arguments_of, logits_of
from lipt.data.sources.storage import allocate_tensor
from lipt.data.targets.values import SingleLabel, Target
from lipt.models.head import evaluation_mode, find_head


def compute_signals(model: nn.Module, batches: Batches) -> Signals:
    """Errors and features by one forward pass over the examples; raises as `compute_values`."""
    computed = compute_values(model, batches, ScoredValues.SIGNALS)
    return signals_from(computed, model, batches.dataset, batches.ids_N)


def signals_from(
    computed: Mapping[str, Tensor], model: nn.Module, dataset: Dataset, ids_N: Tensor
) -> Signals:
    """The signals of a pass's values, with the examples' labels."""
    _, head = find_head(model)
    return Signals(
        computed[ERRORS],
        computed[FEATURES],
        dataset.labels_N[ids_N],
        has_bias=head.bias is not None,
        kind=dataset.target.kind,
    )


def compute_values(
    model: nn.Module, batches: Batches, values: ScoredValues, *, scratch: Path | None = None
) -> dict[str, Tensor]:
    """A pass's values by name, of all examples of the batches.

    Large arrays are mapped files in the folder `scratch`. SignalsError, with the first ids, if
    outputs are not finite or features too large for float16.
    """
    computed = allocated(stored_specs(model, len(batches), values), scratch)
    pass_over(model, batches, KINDS[values], computed)
    return computed


def stored_specs(
    model: nn.Module, num_examples: int, values: ScoredValues
) -> dict[str, TensorSpec]:
    """The arrays of a pass over so many examples; those of signals are float16 if too large."""
    limits, (_, head) = STORAGE_LIMITS, find_head(model)
    specs = value_specs(
        values, num_examples, num_outputs=head.out_features, num_features=head.in_features
    )
    if values is not ScoredValues.SIGNALS:
        return specs
    dtypes = {ERRORS: limits.error_dtype, FEATURES: limits.feature_dtype}
    return {
        name: replace(spec, dtype=dtypes[name](spec.num_elements)) for name, spec in specs.items()
    }


def allocated(specs: Mapping[str, TensorSpec], scratch: Path | None) -> dict[str, Tensor]:
    """Uninitialized arrays, in mapped files of the folder where they are large."""
    room = partial(allocate_tensor, folder=scratch, memory_bytes=STORAGE_LIMITS.memory_bytes)
    return {name: room(spec.shape, spec.dtype) for name, spec in specs.items()}


def errors_of(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    return SingleLabel(logits_NC.shape[-1]).residuals(logits_NC, labels_N)


# B copies of all gradients are in memory at once.
_CHUNK_BYTES, _MAX_CHUNK_SIZE = 2 * 1024**3, 256
_SMALL_CPU_MODEL, _CPU_CHUNK_SIZE = 1_000_000, 16


def default_chunk_size(model: nn.Module, device: torch.device) -> int:
    """Gradients taken at once: on a CPU, `vmap` slows down large convolutions."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if device.type == "cpu":
        return _CPU_CHUNK_SIZE if num_parameters < _SMALL_CPU_MODEL else 1
    return max(1, min(_MAX_CHUNK_SIZE, _CHUNK_BYTES // (4 * num_parameters)))


def full_gradient_norms(model: nn.Module, batches: Batches, *, cpu_threads: int = 1) -> Tensor:
    """The Euclidean norm of each example's gradient by all trainable parameters."""
    ids_N, target = batches.ids_N, batches.dataset.target
    norms_N = torch.empty(len(ids_N))
    with evaluation_mode(model), computation(cpu_threads):
        for rows, inputs_B, targets_B in batches:
            norms_B = per_example_norms(model, target, inputs_B, targets_B)
            require_finite_rows(norms_B.isfinite(), ids_N[rows], "gradients")
            norms_N[rows] = norms_B.cpu()
    return norms_N


def per_example_norms(
    model: nn.Module, target: Target, inputs_B: Inputs, targets_B: Tensor
) -> Tensor:
    """The norms for one chunk of inputs of a model in evaluation mode; float32, B."""
    parameters = trainable(model)

    def norm(example: Inputs, own: Tensor) -> Tensor:
        alone = tree_map(lambda tensor: tensor[None], example)
        gradients = grad(loss_sum(model, target, alone, own[None]))(parameters)
        # In float64: a sum over millions of parameters.
        squares = [gradient.double().square().sum() for gradient in gradients.values()]
        return torch.stack(squares).sum().sqrt().float()

    def each_alone() -> Tensor:
        examples = (tree_map(itemgetter(row), inputs_B) for row in range(len(targets_B)))
        return torch.stack(list(map(norm, examples, targets_B)))

    if len(targets_B) == 1:
        return each_alone()
    try:
        norms_B: Tensor = vmap(norm)(inputs_B, targets_B)
    except RuntimeError as error:
        # The model branches on values, as Hugging Face's do on masks.
        if "vmap" not in str(error):
            raise
        return each_alone()
    return norms_B


Parameters = dict[str, Tensor]
# The SUM of the losses of some examples, as a function of the parameters.
LossSum = Callable[[Parameters], Tensor]


def loss_sum(model: nn.Module, target: Target, inputs_B: Inputs, targets_B: Tensor) -> LossSum:
    """The sum of a batch's losses, of a model in evaluation mode."""
    args, keywords = arguments_of(inputs_B)

    def loss(parameters: Parameters) -> Tensor:
        # functional_call takes everything else from the model.
        logits_BC = logits_of(functional_call(model, parameters, args, keywords))
        return target.losses(logits_BC, targets_B).sum()

    return loss


def trainable(model: nn.Module) -> Parameters:
    return {
        name: tensor.detach() for name, tensor in model.named_parameters() if tensor.requires_grad
    }
