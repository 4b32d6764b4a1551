"""Subset sending: all of a stored subset, or what differs from the one that the trainer has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lipt.common.blobs.store import BlobStore
from lipt.common.errors import LiptError
from lipt.common.subsets.difference import (
    Difference,
    Examples,
    difference_bytes,
    examples_bytes,
    find_difference,
)
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import SubsetRecord

# At most 13 bytes each, and as many removed ones of 9, so a message stays below 400 KiB.
_EXAMPLES_PER_PART = 16_384


@dataclass(frozen=True)
class Sending:
    """What is sent of a subset.

    difference_to: the digest of the subset that `content` is the difference to; empty where
        it is all examples.
    """

    content: Examples | Difference
    difference_to: str = ""

    def parts(self) -> Iterator[Examples | Difference]:
        """The content in messages' sizes; none at all where there is nothing to send."""
        content = self.content
        if isinstance(content, Examples):
            for start in range(0, len(content), _EXAMPLES_PER_PART):
                yield _part(content, start)
            return
        longest = max(len(content.removed_R), len(content.changed))
        for start in range(0, longest, _EXAMPLES_PER_PART):
            removed_R = content.removed_R[start : start + _EXAMPLES_PER_PART]
            yield Difference(removed_R, _part(content.changed, start))


class SubsetContents:
    """Reads stored subsets."""

    def __init__(self, database: Database, blobs: BlobStore) -> None:
        self._database = database
        self._blobs = blobs

    async def sending(self, subset: SubsetRecord, previous: str) -> Sending:
        """The shorter one of a subset's examples and what differs from a previous one.

        Args:
            subset: what is asked for.
            previous: the digest of a subset that the trainer has; empty where it has none.
                One that is not of the same run, or cannot be read any more, is as none.
        """
        new = await self.read(subset)
        old = await self._find(subset.run_id, previous)
        if old is None:
            return Sending(new)
        return await asyncio.to_thread(_shorter, previous, old, new)

    async def _find(self, run_id: str, digest: str) -> Examples | None:
        if digest:
            # Equal digests are equal examples: any of them will do.
            for subset in await self._database.find_subsets(run_id, digest):
                with contextlib.suppress(LiptError):
                    return await self.read(subset)
        return None

    async def read(self, subset: SubsetRecord) -> Examples:
        """All examples of a subset, ascending, and their weights.

        Raises:
            LiptError: its blob is gone, or damaged.
        """
        return await asyncio.to_thread(self._read, subset)

    def _read(self, subset: SubsetRecord) -> Examples:
        content = self._blobs.read_bytes(subset.blob)
        indices_K = np.frombuffer(content, dtype="<i8", count=subset.num_examples)
        return Examples(indices_K, np.frombuffer(content, dtype="<f4", offset=indices_K.nbytes))


def _shorter(previous: str, old: Examples, new: Examples) -> Sending:
    difference = find_difference(old, new)
    if difference_bytes(difference) < examples_bytes(new):
        return Sending(difference, difference_to=previous)
    return Sending(new)


def _part(examples: Examples, start: int) -> Examples:
    part = slice(start, start + _EXAMPLES_PER_PART)
    return Examples(examples.indices_K[part], examples.weights_K[part])
