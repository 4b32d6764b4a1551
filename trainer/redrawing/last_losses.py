"""Last losses: what each example's loss was when it was last trained on.

Losses are noted batch by batch, wherever they lie, and taken over between epochs: an epoch is
drawn by what was known before it, and no batch waits for the device. In training on several
ranks each has the losses of its own share; what is taken over is everybody's.

Shapes: N examples, B of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, distributed

from lipt.common.errors import ConfigError


class LastLosses:
    """The losses that examples are drawn by.

    Args:
        num_examples: N.

    Attributes:
        known_N: float32, on the CPU; infinite for an example that was never trained on.
    """

    def __init__(self, num_examples: int) -> None:
        self.known_N = torch.full((num_examples,), torch.inf)
        self._noted: list[tuple[Tensor, Tensor]] = []
        # Those of all ranks, not taken over yet.
        self._gathered: list[tuple[Tensor, Tensor]] = []

    def note(self, ids_B: Tensor, losses_B: Tensor) -> None:
        """Keep a batch's losses until the next `settle`.

        Args:
            ids_B: row numbers, integers, on any device.
            losses_B: one for each, on any device; with or without a gradient.

        Raises:
            ConfigError: there is not one loss per example.
        """
        if ids_B.ndim != 1 or ids_B.shape != losses_B.shape:
            raise ConfigError(
                f"row numbers of shape {list(ids_B.shape)} and losses of shape "
                f"{list(losses_B.shape)} are not one loss per example. Compute the loss with "
                'reduction="none".'
            )
        # Not the caller's own memory, which may change, nor what the loss was computed from.
        self._noted.append((ids_B.detach().clone(), losses_B.detach().clone()))

    def gather(self) -> None:
        """Tell all ranks what each has noted; where there are several, call it on every one."""
        mine = [_together(self._noted)]
        self._noted = []
        everybodys: list[list[tuple[Tensor, Tensor]]] = [mine]
        if distributed.is_available() and distributed.is_initialized():
            everybodys = [[] for _ in range(distributed.get_world_size())]
            distributed.all_gather_object(everybodys, mine)
        self._gathered += [part for rank in everybodys for part in rank]

    def settle(self) -> None:
        """Take over what all ranks have noted; where there are several, call it on every one.

        Raises:
            IndexError: a row number is outside 0..N-1.
        """
        self.gather()
        ids, losses = _together(self._gathered)
        # NumPy's, where the last of several values for one index is the one that stays.
        self.known_N.numpy()[ids.numpy()] = losses.numpy()
        self._gathered = []

    def state_dict(self) -> dict[str, Tensor]:
        """All of it, as tensors: what is known, and what this rank knows besides."""
        ids, losses = _together([*self._gathered, *self._noted])
        return {"known": self.known_N.clone(), "noted_ids": ids, "noted_losses": losses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            ConfigError: it is the state for other data.
        """
        if len(state["known"]) != len(self.known_N):
            raise ConfigError(
                f"the state has the losses of {len(state['known'])} examples, but there are "
                f"{len(self.known_N)}. Give the data that was trained on."
            )
        self.known_N = state["known"].clone()
        self._gathered = [(state["noted_ids"].clone(), state["noted_losses"].clone())]
        self._noted = []


def _together(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Row numbers, int64, and losses, float32, on the CPU, in order."""
    ids = [torch.empty(0, dtype=torch.int64), *(part[0].cpu().long() for part in parts)]
    losses = [torch.empty(0), *(part[1].cpu().float() for part in parts)]
    return torch.cat(ids), torch.cat(losses)
