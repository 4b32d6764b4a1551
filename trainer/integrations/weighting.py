"""Weighting: example weights and soft labels in the losses of a framework's training step.

Losses of torch.nn.functional within a step are computed per example, weighted, and reduced as
requested. Cross-entropy gets soft targets. The sampler's order identifies a batch's examples.
Shapes: B examples of a batch, C classes.
"""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lipt.trainer.resampling.samplers import RankSampler, SubsetSampler
from lipt.trainer.subsets.data import UnweightedWarning, soft_targets

logger = logging.getLogger(__name__)

_LOSSES = frozenset(
    {
        functional.binary_cross_entropy,
        functional.binary_cross_entropy_with_logits,
        functional.cross_entropy,
        functional.l1_loss,
        functional.mse_loss,
        functional.nll_loss,
        functional.smooth_l1_loss,
    }
)


class WeightedLosses(TorchFunctionMode):
    """Weights each example's loss within the block, and mixes soft labels into its target.

    Losses of another length or without a reduction stay unweighted; two counters count the others.
    """

    def __init__(
        self, weights_B: Tensor, soft_labels_BC: Tensor | None = None, alpha: float = 0.0
    ) -> None:
        super().__init__()
        self._weights_B, self._soft_labels_BC, self._alpha = weights_B, soft_labels_BC, alpha
        self.num_weighted = self.num_softened = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        if func not in _LOSSES:
            return func(*args, **given)
        bound = inspect.signature(func).bind(*args, **given)
        reduction = bound.arguments.get("reduction", "mean")
        if reduction == "none" or len(args[0]) != len(self._weights_B):
            return func(*args, **given)
        if func is functional.cross_entropy and self._soft_labels_BC is not None:
            labels_B = bound.arguments["target"]
            if labels_B.shape == self._weights_B.shape and not labels_B.is_floating_point():
                soft_BC = self._soft_labels_BC.to(labels_B.device)
                bound.arguments["target"] = soft_targets(labels_B, soft_BC, self._alpha)
                self.num_softened += 1
        bound.arguments["reduction"] = "none"
        losses = func(*bound.args, **bound.kwargs)
        shape = (-1,) + (1,) * (losses.ndim - 1)
        weighted = losses * self._weights_B.to(losses.device, losses.dtype).view(shape)
        self.num_weighted += 1
        if reduction == "sum":
            return weighted.sum()
        given = bound.arguments
        if func not in {functional.cross_entropy, functional.nll_loss}:
            return weighted.mean()
        ignored = given.get("ignore_index", -100)
        return _mean(weighted, given["target"], given.get("weight"), ignored)


def _mean(losses: Tensor, targets: Tensor, weights_C: Tensor | None, ignored: int) -> Tensor:
    """The mean as in torch: no ignored target counts, and others count as their class does."""
    if targets.is_floating_point():
        return losses.mean()
    counts = (targets != ignored).to(losses.dtype)
    if weights_C is not None:
        counts *= weights_C[targets.where(counts > 0, 0)]
    return losses.sum() / counts.sum()


class Weighting:
    """Applies a sampler's weights to the losses of training steps; logs it at the first one."""

    def __init__(self, sampler: RankSampler) -> None:
        self._sampler = sampler if isinstance(sampler, SubsetSampler) else None
        self._batch = 0
        self._reported: set[str] = set()

    def begin(self, batch: int = 0) -> None:
        self._batch = batch - 1

    def next_batch(self) -> None:
        self._batch += 1

    def step(
        self, compute: Callable[..., Any], batch_size: Callable[[], int | None]
    ) -> Callable[..., Any]:
        """Wrap a training step with weighted losses; `batch_size` returns None if unknown."""

        @functools.wraps(compute)
        def weighted(*args: Any, **kwargs: Any) -> Any:
            sampler, size, why = self._sampler, batch_size(), ""
            if sampler is None or not (sampler.is_weighted or sampler.alpha):
                return compute(*args, **kwargs)
            if size is None:
                result = compute(*args, **kwargs)
                why = "the batches are not made by the DataLoader, so their examples are unknown"
            else:
                weights_B = sampler.weights(self._batch, size)
                soft_labels_BC = sampler.soft_labels(self._batch, size)
                with WeightedLosses(weights_B, soft_labels_BC, sampler.alpha) as losses:
                    result = compute(*args, **kwargs)
                if not losses.num_weighted or (sampler.alpha and not losses.num_softened):
                    why = "the training step computes no per-example loss of torch.nn.functional"
            self._report(sampler, why)
            return result

        return weighted

    def _report(self, sampler: SubsetSampler, why: str) -> None:
        """Log once that the weights count, or warn once `why` they do not."""
        if why in self._reported or not (why or sampler.is_weighted):
            return
        self._reported.add(why)
        strategy = sampler.subset.strategy
        if why:
            warnings.warn(
                f"The weights or soft labels by {strategy} do not count: {why}. Compute the loss "
                "yourself, with subset.dataset(data) and WeightedSubsetLoss or SoftTargetLoss.",
                UnweightedWarning,
                stacklevel=3,
            )
        else:
            # A warning is visible without a logging configuration.
            logger.warning(
                "lipt: each example's loss is multiplied by the weight that %s gave it.", strategy
            )
