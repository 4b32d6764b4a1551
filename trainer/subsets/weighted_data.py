"""Weighted data: a subset's examples with their weights, so that none gets lost on the way.

Shapes: K examples of the subset, B of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from lipt.trainer.subsets.notebook import as_table, thumbnails
from lipt.trainer.subsets.same_data import ExampleT_co, MapStyle

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
        """What a notebook shows: the subset, and pictures of examples across it."""
        places = torch.linspace(0, len(self) - 1, min(len(self), _NUM_SHOWN)).int().tolist()
        shown = [(self._rows[self._indices[place]], self._indices[place]) for place in places]
        pictures = [_shown(example, row) for example, row in shown]
        return as_table("Examples with weights", self._facts) + thumbnails(pictures)


def _shown(example: Any, row: int) -> tuple[Any, str]:
    """What there is to see of an example, and a line below it."""
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
