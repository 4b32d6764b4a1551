"""Batches: the examples of a data set as a model is given them, with progress.

Shapes: N examples, B of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.inputs.formats import InputFormat
from lipt.common.inputs.model_input import to_model_input
from lipt.common.inputs.specs import Inputs
from lipt.coordinator.signals.blocks import row_blocks

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Batches:
    """Consecutive batches of the examples.

    dataset: where examples and targets come from.
    inputs: what models are given of them.
    device: where the model is.
    size: examples of a batch; the last one may have fewer.
    on_progress: told after every batch how many of the N examples are done.
    some: N int64 ids of the examples; all of them where None.
    """

    dataset: Dataset
    inputs: InputFormat
    device: torch.device
    size: int
    on_progress: OnProgress
    some: Tensor | None = None

    @property
    def ids_N(self) -> Tensor:
        """The examples' ids."""
        return torch.arange(len(self.dataset)) if self.some is None else self.some

    def __len__(self) -> int:
        """How many examples there are in all batches."""
        return len(self.ids_N)

    def __iter__(self) -> Iterator[tuple[slice, Inputs, Tensor]]:
        """The rows of each batch, its inputs and its targets on the device."""
        ids_N = self.ids_N
        for rows in row_blocks(len(ids_N), 1, self.size):
            examples_B = self.dataset.examples(ids_N[rows])
            targets_B = self.dataset.targets_N[ids_N[rows]]
            inputs_B = to_model_input(examples_B, self.inputs, self.device)
            yield rows, inputs_B, targets_B.to(self.device)
            self.on_progress(rows.stop, len(ids_N))
