"""Room for what is computed of all examples: memory, or where it is much a file mapped into it.

Pages of a file go to the disk when memory runs short, and what is read again comes back from
there; other memory has nowhere to go to without swap. The file has no name: it is gone with the
last tensor on it, however the process ends.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from lipt.common.text import format_bytes

logger = logging.getLogger(__name__)


def make_room(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    folder: Path | None,
    *,
    memory_bytes: int,
) -> Tensor:
    """An uninitialized tensor on the CPU.

    Args:
        shape: of the tensor.
        dtype: of its values.
        folder: where a file may be, made where it is missing; None for memory alone. Where it has
            no room for one, memory is taken as well.
        memory_bytes: what is held in memory at the most, where a file can be had.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    # Where room cannot be taken at once, as on macOS, there is no file.
    can_be_taken = hasattr(os, "posix_fallocate")
    if folder is None or not can_be_taken or num_bytes <= memory_bytes:
        return torch.empty(shape, dtype=dtype)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # Taken at once: a full disk would end the process when a page is written.
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            mapped = mmap.mmap(file.fileno(), num_bytes)
    except OSError as error:
        logger.warning(
            "%s are held in memory, as they cannot be mapped in %s: %s",
            format_bytes(num_bytes),
            folder,
            error,
        )
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mapped, dtype=dtype).view(shape)
