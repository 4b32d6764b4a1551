"""Prepared inputs: made once, as long as they take little memory, for many passes of a model."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, overload

import torch
from torch import Tensor

from lipt.common.inputs.formats import InputFormat
from lipt.common.inputs.model_input import to_model_input
from lipt.common.inputs.specs import Inputs
from lipt.common.inputs.stored import Stored

# Of inputs of the validation split, of those of batch norm, and of features, each.
_MOST_KEPT_BYTES = 256 * 1024**2
InputsT = TypeVar("InputsT", bound=Inputs)


class Kept(Generic[InputsT]):
    """What was made for batches, by their numbers, as far as it fits; for several threads."""

    def __init__(self) -> None:
        self._values: dict[int, InputsT] = {}
        self._num_bytes = 0
        self._lock = threading.Lock()

    def find(self, number: int) -> InputsT | None:
        """What is kept for a batch, if it is."""
        return self._values.get(number)

    def keep(self, number: int, value: InputsT) -> None:
        """Keep it where there is room, and it is not there yet."""
        tensors = [value] if isinstance(value, Tensor) else value.values()
        num_bytes = sum(tensor.nbytes for tensor in tensors)
        with self._lock:
            fits = self._num_bytes + num_bytes <= _MOST_KEPT_BYTES
            if fits and number not in self._values:
                self._values[number] = value
                self._num_bytes += num_bytes


@dataclass(frozen=True)
class PreparedInputs(Sequence[Inputs]):
    """Batches of stored examples as model inputs; the first ones, that fit in memory, are kept."""

    stored: Sequence[Stored]
    inputs: InputFormat
    device: torch.device | str
    kept: Kept[Inputs] = field(default_factory=Kept)

    def __len__(self) -> int:
        return len(self.stored)

    @overload
    def __getitem__(self, number: int) -> Inputs: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Inputs]: ...
    def __getitem__(self, number: int | slice) -> Inputs | Sequence[Inputs]:
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        inputs_B = self.kept.find(number)
        if inputs_B is None:
            inputs_B = to_model_input(self.stored[number], self.inputs, self.device)
            self.kept.keep(number, inputs_B)
        return inputs_B
