"""Row numbers: an array that is read as plain ints, as data sets expect them.

A list of Python's ints takes 36 bytes for each, and a DataLoader's workers copy it as they count
references. This holds the array alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

# So many are plain ints at a time.
_BLOCK = 16_384


class RowNumbers(Sequence[int]):
    """A sequence of ints.

    Args:
        indices_N: int64; not copied.
    """

    def __init__(self, indices_N: NDArray[np.int64]) -> None:
        self._indices_N = indices_N

    def __len__(self) -> int:
        return len(self._indices_N)

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> Self: ...

    def __getitem__(self, place: int | slice) -> int | Self:
        if isinstance(place, slice):
            return type(self)(self._indices_N[place])
        return int(self._indices_N[place])

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self), _BLOCK):
            yield from self._indices_N[start : start + _BLOCK].tolist()
