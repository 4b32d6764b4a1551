"""Weighted training: examples with their weights, and a loss in which they count.

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
from lipt.trainer.subsets.data import ExampleT_co, MapStyle
from lipt.trainer.subsets.notebook import as_table, thumbnails


def weighted_cross_entropy(
    logits_BC: Tensor, labels_B: Tensor, weights_B: Tensor, *, label_smoothing: float = 0.0
) -> Tensor:
    """Mean over the batch of each example's cross-entropy times its weight.

    The sum is divided by B, not by the weights' sum: a batch of heavy examples then moves
    the model further than one of light ones, as in training on all that they stand for.
    Give weights with mean 1 over the subset (`normalized_weights`), and the learning rate
    means what it means without them.

    Args:
        logits_BC: the model's outputs, any floating dtype.
        labels_B: int64.
        weights_B: one per example, on the same device.
        label_smoothing: share of the target that goes to all classes.

    Returns:
        0-d, float32.
    """
    losses_B = example_losses(logits_BC, labels_B, label_smoothing=label_smoothing)
    return (losses_B * weights_B).mean()


def example_losses(logits_BC: Tensor, labels_B: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Each example's cross-entropy, float32, without weights; arguments as above."""
    return functional.cross_entropy(
        logits_BC.float(), labels_B, reduction="none", label_smoothing=label_smoothing
    )


def normalized_weights(weights_N: Tensor) -> Tensor:
    """A subset's weights scaled to mean 1, float32; all ones where they sum to 0."""
    mean = weights_N.double().mean()
    return (weights_N / mean).float() if mean > 0 else weights_N.new_ones(len(weights_N))


class WeightedSubsetLoss(nn.Module):
    """A loss in which every example counts as much as its subset says.

        loss_of = WeightedSubsetLoss()
        for images, labels, weights in DataLoader(subset.dataset(data), batch_size=64):
            loss = loss_of(model(images), labels, weights)

    Args:
        criterion: gives one loss for each example, such as
            `nn.CrossEntropyLoss(reduction="none")`, which is the one where None.
    """

    def __init__(self, criterion: Callable[[Tensor, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self._criterion = criterion or example_losses

    def forward(self, outputs: Tensor, targets: Tensor, weights_B: Tensor) -> Tensor:
        """Mean over the batch of each example's loss times its weight, 0-d.

        Args:
            outputs: the model's, one row for each example.
            targets: what `criterion` takes with them.
            weights_B: one for each example.

        Raises:
            ConfigError: `criterion` does not give one loss for each example.
        """
        losses_B = self._criterion(outputs, targets)
        if losses_B.shape != weights_B.shape:
            raise ConfigError(
                f"the criterion gave losses of shape {list(losses_B.shape)} for weights of shape "
                f"{list(weights_B.shape)}. Let it give one loss for each example: "
                'reduction="none", and a mean over what an example has several of.'
            )
        return (losses_B * weights_B).mean()


# The key of an example's weight, where examples are dictionaries.
WEIGHT = "weight"
# Pictures in a notebook.
_NUM_SHOWN = 16


class UnweightedWarning(UserWarning):
    """Examples of a subset that has weights are taken without them."""


class WeightedData(Dataset[Any]):
    """The chosen examples, each with its weight as the last of a tuple or under "weight".

    Args:
        rows: the whole data set.
        indices: K row numbers.
        weights_K: one for each, float32.
        facts: what a notebook is told of the subset.
    """

    def __init__(
        self,
        rows: MapStyle[ExampleT_co],
        indices: Sequence[int],
        weights_K: Tensor,
        facts: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._rows, self._indices, self._weights_K = rows, indices, weights_K
        self._facts = facts

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: int) -> Any:
        row: Any = self._rows[self._indices[place]]
        weight = self._weights_K[place]
        if isinstance(row, Mapping):
            return {**row, WEIGHT: weight}
        return (*row, weight) if isinstance(row, tuple | list) else (row, weight)

    def _repr_html_(self) -> str:
        places = torch.linspace(0, len(self) - 1, min(len(self), _NUM_SHOWN)).int().tolist()
        shown = [(self._rows[self._indices[place]], self._indices[place]) for place in places]
        pictures = [_shown(example, row) for example, row in shown]
        return as_table("Examples with weights", self._facts) + thumbnails(pictures)


def _shown(example: Any, row: int) -> tuple[Any, str]:
    if isinstance(example, Mapping):
        return example.get("image"), f"row {row}"
    if isinstance(example, tuple | list) and len(example) > 1:
        return example[0], f"row {row}: {example[1]}"
    return example, f"row {row}"


class WeightedCollate:
    """Puts weighted examples into batches by a function that knows nothing of weights.

        loader = DataLoader(subset.dataset(data), collate_fn=WeightedCollate(pad))

    Weights come as the last of a tuple, or under "weight" of a dictionary. Not needed where the
    DataLoader's own way of making batches will do.

    Args:
        collate: makes a batch of examples as the data set has them, such as one that pads.
    """

    def __init__(self, collate: Callable[[list[Any]], Any] = default_collate) -> None:
        self._collate = collate

    def __call__(self, examples: Sequence[Any]) -> Any:
        """A batch with its B weights."""
        if isinstance(examples[0], Mapping):
            weights_B = torch.stack([example[WEIGHT] for example in examples])
            plain = [
                {name: value for name, value in example.items() if name != WEIGHT}
                for example in examples
            ]
            batch = self._collate(plain)
            batch[WEIGHT] = weights_B
            return batch
        weights_B = torch.stack([example[-1] for example in examples])
        batch = self._collate([tuple(example[:-1]) for example in examples])
        return (*batch, weights_B)
