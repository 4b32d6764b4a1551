"""Ranges: the errors and features of consecutive examples, computed anywhere, as one file.

What follows from the examples does not depend on how they are parted as long as every range begins
with a batch: then the batches are those of one pass over all.

Shapes: N examples of a range, B of a batch, C classes, D features.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from lipt.common.config.run_config import WeightEncoding
from lipt.common.config.scoring_task import ScoringTask
from lipt.common.data import Dataset
from lipt.common.determinism.kernels import pinned_kernels
from lipt.common.errors import SignalsError
from lipt.common.models import find_head
from lipt.common.signals.batches import Batches
from lipt.common.signals.passing import OnDone, pass_over
from lipt.common.weights.encodings import encode_weights, open_weights
from lipt.common.weights.finite import non_finite
from lipt.common.weights.specs import TensorSpec, Weights

_ERRORS, _FEATURES = "errors", "features"


def score_range(
    model: nn.Module,
    dataset: Dataset,
    task: ScoringTask,
    *,
    device: torch.device,
    on_done: OnDone = lambda _: None,
) -> Weights:
    """The errors N x C and the features N x D of a range's examples, on the CPU.

    Args:
        model: with the weights that are looked through, on `device`.
        dataset: whose ids the task has.
        task: which examples, and how.
        device: where the model is.
        on_done: may raise to end it.

    Raises:
        SignalsError: outputs that are not finite, or features too large for float16 where the task
            wants them so; names the first ids.
        ConfigError: the model has no linear head.
    """
    _, head = find_head(model)
    like = range_specs(task, head.in_features)
    errors_NC, features_ND = (
        torch.empty(like[name].shape, dtype=like[name].dtype) for name in (_ERRORS, _FEATURES)
    )
    ids_N = torch.arange(task.start, task.stop)
    batches = Batches(dataset, task.inputs, device, task.batch_size, lambda *_: None, some=ids_N)
    with pinned_kernels(task.threads):
        pass_over(model, batches, errors_NC, features_ND, on_done)
    return {_ERRORS: errors_NC, _FEATURES: features_ND}


def range_specs(task: ScoringTask, num_features: int) -> dict[str, TensorSpec]:
    """What a range's tensors are.

    Args:
        task: the range's.
        num_features: D of the model.
    """
    halves = {_ERRORS: task.half_errors, _FEATURES: task.half_features}
    widths = {_ERRORS: task.num_classes, _FEATURES: num_features}
    return {
        name: TensorSpec((len(task), width), torch.float16 if halves[name] else torch.float32)
        for name, width in widths.items()
    }


def encode_range(scored: Weights) -> bytes:
    """A range as a file, without loss: exponents repeat themselves, and are compressed."""
    return encode_weights(scored, WeightEncoding.PLANES)


def read_range(source: bytes | Path, task: ScoringTask, num_features: int) -> tuple[Tensor, Tensor]:
    """The errors N x C and features N x D of a range's file, of which nothing is believed.

    Raises:
        BlobTooLargeError, WeightsError: it is no such file, or another range's.
        SignalsError: a value is not finite.
    """
    scored = dict(open_weights(source, like=range_specs(task, num_features)))
    if bad := non_finite(scored):
        raise SignalsError(f"{bad}: of examples {task.start} to {task.stop - 1}. Score them again.")
    return scored[_ERRORS], scored[_FEATURES]
