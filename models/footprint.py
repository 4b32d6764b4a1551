"""Footprint: a model's memory, measured without its weights.

Meta tensors have shapes but no values, so even the largest model's forward pass takes milliseconds
and no memory. A tensor counts from its creation to its last reference. After the forward pass, the
inputs of the backward pass are alive; gradients of one layer's input and output come on top.

Shapes: N images, C classes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lipt.common.determinism import seeded_generators
from lipt.common.errors import ConfigError
from lipt.data.inputs.specs import InputSpec, arguments_of
from lipt.models.head import evaluation_mode, frozen_names

# A batch norm needs more than one value per channel to train on.
_FEW, _MANY = 2, 4
# Gradients of a layer's input and of its output.
_IN_PASSING = 2


@dataclass(frozen=True)
class ModelFigures:
    """Bytes of a model's state, of its frozen part, and of a batch's example in either mode."""

    weights_bytes: int
    training_bytes: int
    evaluation_bytes: int
    frozen_bytes: int = 0

    @property
    def sent_bytes(self) -> int:
        """The size of the part that learners train and send."""
        return self.weights_bytes - self.frozen_bytes


class LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors created in its block."""

    def __init__(self, *, max_bytes: float = float("inf"), besides: Iterable[Tensor] = ()) -> None:
        """More than `max_bytes` raise MemoryError; `besides` and their views do not count."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._max_bytes = max_bytes
        self._live_bytes = 0
        self._known = {_key(tensor) for tensor in besides}
        self.peak_bytes = self.largest_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        if self._live_bytes > self._max_bytes:
            raise MemoryError(f"{self._live_bytes} bytes are more than {self._max_bytes:.0f}")
        return result

    def _count(self, tensor: Tensor) -> None:
        storage, key = tensor.untyped_storage(), _key(tensor)
        size = storage.nbytes()
        # Count a shared storage once.
        if key in self._known:
            return
        self._known.add(key)
        self._live_bytes += size
        self.largest_bytes = max(self.largest_bytes, size)
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        weakref.finalize(storage, self._forget, key, size).atexit = False

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._live_bytes -= size


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - a storage has no other name
    return key


def measure_model(
    model: nn.Module, spec: str, *, inputs: InputSpec, frozen: Iterable[str] = ()
) -> ModelFigures:
    """A model's memory; small batches of zeros are computed if a user's model needs values.

    `frozen` are patterns, as in `frozen_names`.
    """
    state, frozen_in_state = model.state_dict(), frozen_names(model, frozen)
    try:
        training, passing, evaluation = _per_example(model, inputs, torch.device("meta"))
    except Exception:  # noqa: BLE001 - a user's model may raise anything
        try:
            training, passing, evaluation = _per_example(model, inputs, torch.device("cpu"))
        except Exception as error:
            raise ConfigError(
                f"the model {spec!r} fails in training on {_FEW} of {inputs} with "
                f"{type(error).__name__}: {error}. Let it take any batch."
            ) from error
    return ModelFigures(
        weights_bytes=sum(item.nbytes for item in state.values()),
        training_bytes=training + _IN_PASSING * passing,
        evaluation_bytes=evaluation,
        frozen_bytes=sum(state[name].nbytes for name in frozen_in_state),
    )


def _per_example(model: nn.Module, inputs: InputSpec, device: torch.device) -> tuple[int, int, int]:
    """Bytes per example: alive in training, the largest of these tensors, alive in evaluation."""
    few, many = (_forward(model, size, inputs, device) for size in (_FEW, _MANY))
    with evaluation_mode(model):
        few_in, many_in = (
            _forward(model, size, inputs, device, inference=True) for size in (_FEW, _MANY)
        )

    def grown(less: int, more: int) -> int:
        return -((less - more) // (_MANY - _FEW))

    return (
        grown(few.peak_bytes, many.peak_bytes),
        grown(few.largest_bytes, many.largest_bytes),
        grown(few_in.peak_bytes, many_in.peak_bytes),
    )


def _forward(
    model: nn.Module,
    size: int,
    inputs: InputSpec,
    device: torch.device,
    *,
    inference: bool = False,
) -> LiveTensors:
    with seeded_generators(0, torch.device("cpu")), torch.inference_mode(inference):
        # A forward pass may change the model's buffers.
        stand_ins = _stand_ins(model, device)
        live = LiveTensors(besides=stand_ins.values())
        with live:
            batch = inputs.zeros(size, device)
            args, keywords = arguments_of(batch)
            outputs = functional_call(model, stand_ins, args, keywords)
            del outputs
    return live


def _stand_ins(model: nn.Module, device: torch.device) -> dict[str, Tensor]:
    stand_ins: dict[str, Tensor] = {}
    for name, item in (*model.named_parameters(), *model.named_buffers()):
        if item.device != device:
            stand_ins[name] = torch.empty_like(item, device=device).requires_grad_(
                item.requires_grad
            )
        else:
            stand_ins[name] = item if isinstance(item, nn.Parameter) else item.clone()
    return stand_ins
