"""Warm-up files: how far an ordinary warm-up is, in one safetensors file.

Tensors: `weights/NAME` and, before the end, `momentum/NAME`. The metadata has `step` and `seconds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipt.core.signals.stored import load_tensors, save_tensors
from lipt.core.warm_up import Warmed

_WEIGHTS, _MOMENTUM = "weights/", "momentum/"


@dataclass(frozen=True)
class WarmUpFile:
    """A warm-up that writes itself to a file."""

    warmed: Warmed

    def save(self, path: Path) -> None:
        """Write a safetensors file; readers see all of it or nothing."""
        warmed = self.warmed
        tensors = {_WEIGHTS + name: value for name, value in warmed.weights.items()}
        tensors |= {_MOMENTUM + name: value for name, value in warmed.momentum.items()}
        facts = {"step": str(warmed.step), "seconds": repr(warmed.seconds)}
        save_tensors(path, tensors, facts)


def read_warm_up(path: Path) -> Warmed:
    """What a `WarmUpFile` wrote.

    Raises:
        StateError: the file cannot be read, or is not one of these.
    """

    def build(tensors: dict[str, Any], metadata: dict[str, str]) -> Warmed:
        weights, momentum = (
            {name.removeprefix(kind): tensors[name] for name in tensors if name.startswith(kind)}
            for kind in (_WEIGHTS, _MOMENTUM)
        )
        return Warmed(weights, momentum, int(metadata["step"]), float(metadata["seconds"]))

    return load_tensors(path, "a warm-up", build)
