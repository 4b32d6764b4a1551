"""Device placement of signals: on the device while a strategy works, if they leave it room.

Strategies compute where their tensors are. Half of the free memory is theirs: for the
float32 rows of a block, a class's products, a kernel's block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lipt.core.signals.signals import Signals

_SHARE_OF_FREE_MEMORY = 0.5


def place(signals: Signals, device: torch.device) -> Signals:
    """The signals on the device where they fit, else where they are."""
    if device.type != "cuda":
        return signals
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return moved(signals, device) if fits(signals, free_bytes) else signals


def fits(signals: Signals, free_bytes: int) -> bool:
    """Whether the signals take at most half of what is free."""
    return num_bytes(signals) <= free_bytes * _SHARE_OF_FREE_MEMORY


def num_bytes(signals: Signals) -> int:
    """What all tensors take, those of the validation split and of the learners included."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(signals))


def moved(signals: Signals, device: torch.device) -> Signals:
    """The same signals with every tensor on the device."""
    placed: Signals = _moved(signals, device)
    return placed


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(_moved(part, device) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{name: _moved(part, device) for name, part in parts.items()})
    return value
