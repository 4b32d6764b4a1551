"""Stored examples: a subset's blob, of which no more is in memory than is being looked at.

The blob is what the digest is defined over: all indices, then all weights. A run of examples is
two reads, which the machine's page cache shares among all who ask for the same subset. They are
reads and no mapping: a disk that fails then fails a request, and not the process.

Shapes: K examples of the subset.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lipt.common.blobs.durable import state_errors
from lipt.common.errors import CorruptBlobError
from lipt.common.subsets.difference import Examples

_INDEX_BYTES = 8
_WEIGHT_BYTES = 4


@dataclass(frozen=True)
class StoredExamples:
    """A subset's examples in a file."""

    path: Path
    num_examples: int

    def __len__(self) -> int:
        return self.num_examples

    def read(self, place: slice | None = None) -> Examples:
        """The examples at a place; all of them where none is given.

        Raises:
            StateError: the disk refuses.
            CorruptBlobError: the file ends before them.
        """
        start, stop, _ = (place or slice(None)).indices(self.num_examples)
        count = stop - start
        weights_at = _INDEX_BYTES * self.num_examples + _WEIGHT_BYTES * start
        with state_errors(self.path):
            indices_K = np.fromfile(self.path, "<i8", count, offset=_INDEX_BYTES * start)
            weights_K = np.fromfile(self.path, "<f4", count, offset=weights_at)
        if len(weights_K) != count:
            raise CorruptBlobError(
                f"{self.path} ends before example {stop} of {self.num_examples}. Ask again, and "
                "it is selected anew."
            )
        return Examples(indices_K, weights_K)
