"""Batches: the examples of a data set as a model is given them, with progress.

What has to be read and decoded is so in a thread, while the model works on the batch before.

Shapes: N examples, B of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from lipt.common.data import Dataset
from lipt.common.data.reading_ahead import reading_ahead
from lipt.common.inputs.formats import InputFormat
from lipt.common.inputs.model_input import to_model_input
from lipt.common.inputs.specs import Inputs
from lipt.common.inputs.stored import Stored, pinned, stored_on
from lipt.common.signals.blocks import row_blocks

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Read:
    """A batch as it was read: its rows, examples and targets, on the CPU."""

    rows: slice
    examples_B: Stored
    targets_B: Tensor


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
        num_examples = len(self)
        with self.reading(row_blocks(num_examples, 1, self.size)) as batches:
            for batch in batches:
                targets_B = batch.targets_B.to(self.device, non_blocking=True)
                yield batch.rows, self.inputs_of(batch.examples_B), targets_B
                self.on_progress(batch.rows.stop, num_examples)

    def reading(self, blocks: Iterable[slice]) -> AbstractContextManager[Iterator[Read]]:
        """Some rows after others as they are stored, read ahead where that takes time.

        Args:
            blocks: the rows of each batch.
        """
        ids_N, targets_N = self.ids_N, self.dataset.targets_N

        def read(rows: slice) -> Read:
            examples_B, targets_B = self.dataset.examples(ids_N[rows]), targets_N[ids_N[rows]]
            if self.device.type == "cuda":
                return Read(rows, pinned(examples_B), targets_B.pin_memory())
            return Read(rows, examples_B, targets_B)

        # A user's own rows are asked for in the thread in which they were opened.
        if self.dataset.in_memory or not self.dataset.rows.concurrent:
            return nullcontext(map(read, blocks))
        return reading_ahead(read, blocks)

    def inputs_of(self, examples_B: Stored) -> Inputs:
        """What a model is given of examples as they were read, on the device."""
        there_B = stored_on(examples_B, self.device, non_blocking=True)
        return to_model_input(there_B, self.inputs, self.device)
