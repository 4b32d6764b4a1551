"""Towers: what the user's two encoders are given, and what they have to give.

A tower's name is `module:function`. The function is called once, without arguments, and returns
what is called with batches, such as a module of PyTorch's:

    image tower    float32, B x 3 x S x S, RGB, 0 to 1, on the CPU    ->  B x D, floating point
    text tower     a list of B texts                                  ->  B x D, floating point

Towers see nothing of gradients, and modules are set to `eval`. What is returned may be on any
device, and is divided by its length here. Row i must depend on example i alone.

Shapes: B examples of a batch, S pixels a side, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lipt.common.errors import ConfigError, DataError
from lipt.common.imports.factory import load_factory

_HOW = "Let it return a floating-point tensor with a row for each example of the batch."


@dataclass(frozen=True)
class Tower:
    """One encoder."""

    spec: str
    encode: Callable[[Any], Any]

    def rows(self, batch: Any, size: int) -> Tensor:
        """A batch's rows of length 1, size x D, float32 on the CPU; one of zeros stays one.

        Raises:
            DataError: it fails, or gives something else.
        """
        try:
            with torch.no_grad():
                given = self.encode(batch)
        except Exception as error:
            raise DataError(
                f"the tower {self.spec} failed on a batch of {size} with {type(error).__name__}: "
                f"{error}. Try it alone on such a batch."
            ) from error
        found = torch.as_tensor(given)
        if found.ndim != 2 or len(found) != size or not found.is_floating_point():
            raise DataError(
                f"the tower {self.spec} gives {found.dtype} of shape {list(found.shape)} for a "
                f"batch of {size}. {_HOW}"
            )
        rows_BD = found.detach().cpu().double()
        if not bool(rows_BD.isfinite().all()):
            raise DataError(
                f"the tower {self.spec} gives values that are not finite. Compute in float32, or "
                "look for what makes them."
            )
        lengths_B = rows_BD.norm(dim=1, keepdim=True)
        unit_BD: Tensor = rows_BD / lengths_B.masked_fill(lengths_B == 0, 1)
        return unit_BD.float()


def find_tower(spec: str, allowed_modules: Collection[str]) -> Callable[[], Tower]:
    """What makes the tower, when it is needed.

    Raises:
        ConfigError: it cannot be imported.
        FactoryNotAllowedError: this process's flags do not allow its module.
    """
    factory = load_factory(spec, allowed_modules=allowed_modules)

    def make() -> Tower:
        try:
            encode = factory()
        except Exception as error:
            raise ConfigError(
                f"{spec!r} called without arguments failed with {type(error).__name__}: {error}. "
                "Define it as def tower(), returning what encodes a batch."
            ) from error
        if not callable(encode):
            raise ConfigError(
                f"{spec!r} returns a {type(encode).__name__}, which cannot be called with a batch. "
                "Return the module or function that encodes one."
            )
        return Tower(spec, encode.eval() if isinstance(encode, nn.Module) else encode)

    return make
