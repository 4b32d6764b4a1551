"""Loops compiled with numba, where it is installed.

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


def compiled(function: Function) -> Function:
    """The function in machine code: sequential, without reordered sums, kept on disk.

    Where nothing can be written the code is made again in each process.
    """
    return _compiled(function)


def compiled_with_reordered_sums(function: Function) -> Function:
    """As `compiled`, with sums in any order, so that many terms are added at a time.

    For float64 sums that are compared in float32, where the order cannot be seen.
    """
    return _compiled(function, fastmath={"reassoc", "contract", "nsz"})


def _compiled(function: Function, **options: Any) -> Function:
    import numba  # noqa: PLC0415 - an extra

    try:
        return cast("Function", numba.njit(cache=True, nogil=True, **options)(function))
    except RuntimeError:
        return cast("Function", numba.njit(nogil=True, **options)(function))


@cache
def _numba_is_installed() -> bool:
    return find_spec("numba") is not None
