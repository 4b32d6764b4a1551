"""Weighted training: examples with their weights, and losses that use them.

Shapes: K examples of the subset, B of a batch, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, default_collate

from lipt.common.errors import ConfigError
from lipt.trainer.subsets.data import MapStyle

# The keys of an example's weight and soft label, where examples are dictionaries.
WEIGHT, SOFT_LABEL = "weight", "soft_label"


def example_losses(
    logits_BC: Tensor,
    labels_B: Tensor,
    soft_labels_BC: Tensor | None = None,
    alpha: float = 0.0,
) -> Tensor:
    """Return each example's unweighted cross-entropy, float32; `alpha` as in `SoftTargetLoss`."""
    targets = labels_B
    if soft_labels_BC is not None:
        targets = soft_targets(labels_B, soft_labels_BC, alpha)
    return functional.cross_entropy(logits_BC.float(), targets, reduction="none")


def soft_targets(labels_B: Tensor, soft_labels_BC: Tensor, alpha: float) -> Tensor:
    """Return (1 - alpha) onehot + alpha soft label; B x C float32."""
    hard_BC = functional.one_hot(labels_B, soft_labels_BC.shape[1])
    return torch.lerp(hard_BC.float(), soft_labels_BC.float(), alpha)


def normalized_weights(weights_N: Tensor) -> Tensor:
    """Scale a subset's weights to mean 1, float32; all ones where they sum to 0."""
    mean = weights_N.double().mean()
    return (weights_N / mean).float() if mean > 0 else weights_N.new_ones(len(weights_N))


class WeightedSubsetLoss(nn.Module):
    """A loss that multiplies each example by its weight in the subset.

        loss_of = WeightedSubsetLoss()
        for images, labels, weights in DataLoader(subset.dataset(data), batch_size=64):
            loss = loss_of(model(images), labels, weights)

    `criterion` returns one loss per example; None for `nn.CrossEntropyLoss(reduction="none")`.
    """

    def __init__(self, criterion: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self._criterion = criterion or example_losses

    def forward(self, outputs: Tensor, targets: Tensor, weights_B: Tensor) -> Tensor:
        """Return the mean of loss times weight, 0-d; ConfigError unless one loss per example."""
        losses_B = self._criterion(outputs, targets)
        if losses_B.shape != weights_B.shape:
            raise ConfigError(
                f"the criterion gave losses of shape {list(losses_B.shape)} for weights of shape "
                f"{list(weights_B.shape)}. Let it give one loss for each example: "
                'reduction="none", and a mean over what an example has several of.'
            )
        return (losses_B * weights_B).mean()


class SoftTargetLoss(nn.Module):
    """Cross-entropy with targets between an example's label and its soft label.

        loss_of = SoftTargetLoss(subset.recommended_alpha)
        for images, labels, weights, soft_labels in DataLoader(subset.dataset(data)):
            loss = loss_of(model(images), labels, weights, soft_labels)

    `alpha` is the soft label's share of the target; ConfigError outside [0, 1].
    """

    def __init__(self, alpha: float = 0.5) -> None:
        super().__init__()
        if not 0 <= alpha <= 1:
            raise ConfigError(f"alpha {alpha} is outside [0, 1]. Try subset.recommended_alpha.")
        self.alpha = alpha

    def forward(
        self, logits_BC: Tensor, labels_B: Tensor, weights_B: Tensor, soft_labels_BC: Tensor
    ) -> Tensor:
        """Return the mean over the batch of each example's loss times its weight, 0-d."""
        losses_B = example_losses(logits_BC, labels_B, soft_labels_BC, self.alpha)
        return (losses_B * weights_B).mean()


class UnweightedWarning(UserWarning):
    """A weighted subset's examples are used without their weights."""


class WeightedData(Dataset[Any]):
    """Selected examples, each with its weight and soft label last, or under their own keys."""

    def __init__(
        self,
        rows: MapStyle[Any],
        indices: Sequence[int],
        weights_K: Tensor,
        soft_labels_KC: Tensor | None,
    ) -> None:
        self._rows, self._indices = rows, indices
        self._columns = {WEIGHT: weights_K}
        if soft_labels_KC is not None:
            self._columns[SOFT_LABEL] = soft_labels_KC

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: int) -> Any:
        row = self._rows[self._indices[place]]
        more = {key: column[place] for key, column in self._columns.items()}
        if isinstance(row, Mapping):
            return {**row, **more}
        return (*(row if isinstance(row, tuple | list) else (row,)), *more.values())


class WeightedCollate:
    """Adds weights and soft labels to the batches of your own collate function.

        loader = DataLoader(subset.dataset(data), collate_fn=WeightedCollate(pad))

    They come last in a batch's tuple, or under "weight" and "soft_label" in a dictionary. The
    DataLoader's default collate needs no such wrapper. `collate` batches the data's own examples.
    """

    def __init__(self, collate: Callable[[list[Any]], Any] = default_collate) -> None:
        self._collate = collate

    def __call__(self, examples: Sequence[Any]) -> Any:
        """Return a batch with its B weights, and B x C soft labels if any."""
        if isinstance(examples[0], Mapping):
            plain = [dict(example) for example in examples]
            keys = [key for key in (WEIGHT, SOFT_LABEL) if key in plain[0]]
            more = {key: torch.stack([example.pop(key) for example in plain]) for key in keys}
            batch = self._collate(plain)
            batch.update(more)
            return batch
        # A weight is one number, a soft label a row of numbers.
        last = 2 if examples[0][-1].ndim else 1
        batch = self._collate([tuple(example[:-last]) for example in examples])
        columns = zip(*(example[-last:] for example in examples), strict=True)
        return (*batch, *map(torch.stack, columns))
