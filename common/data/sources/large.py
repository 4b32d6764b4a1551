"""Large values: room for what is made of all rows, in a mapped file where it is much."""

from __future__ import annotations

import torch
from torch import Tensor

from lipt.common.data.room import make_room
from lipt.common.data.sources.kept_index import index_folder

# Beyond it, values are in a file of the cache directory from the start.
MEMORY_BYTES = 2**28


def room_for(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialized tensor; a large one has no name on the disk, and is gone with its user."""
    return make_room(shape, dtype, index_folder(), memory_bytes=MEMORY_BYTES)
