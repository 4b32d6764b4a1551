"""Compiling: loops in machine code, by numba where it is installed.

Modules that use `compiled` import numba with it, so they are imported inside functions
and only after `can_compile`: everything works without numba, in torch, with the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def can_compile(device: torch.device) -> bool:
    """Whether a compiled loop can work on tensors of that device."""
    return device.type == "cpu" and _numba_is_installed()


def compiled(function: Function, *, fastmath: bool | set[str] = False) -> Function:
    """The function in machine code: sequential, kept on disk where that can be written.

    Sums keep their order, but for what `fastmath` allows.
    """
    import numba  # noqa: PLC0415 - an extra

    try:
        return cast("Function", numba.njit(cache=True, nogil=True, fastmath=fastmath)(function))
    except RuntimeError:
        return cast("Function", numba.njit(nogil=True, fastmath=fastmath)(function))


@cache
def _numba_is_installed() -> bool:
    return find_spec("numba") is not None
