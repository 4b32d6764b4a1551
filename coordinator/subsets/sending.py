"""Subset sending: a stored subset run by run, or what differs from the one that the trainer has.

However long a subset is, a request holds one run of it. Differences are found in memory, so that
they are for subsets that fit there several times; longer ones come whole, and packed they are
small.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from lipt.common.errors import LiptError
from lipt.common.subsets.difference import (
    Difference,
    Examples,
    difference_bytes,
    examples_bytes,
    find_difference,
)
from lipt.common.subsets.packing import PackedRun, pack, packed_bytes, runs_of
from lipt.coordinator.state.database import Database
from lipt.coordinator.state.records import SubsetRecord
from lipt.coordinator.subsets.stored_examples import StoredExamples
from lipt.coordinator.subsets.verification import Verification

# At most 13 bytes each, and as many removed ones of 9, so a message stays below 400 KiB.
_EXAMPLES_PER_PART = 16_384

# Of either of two subsets: finding what differs takes some 100 bytes for each.
_MOST_COMPARED = 2**21

Part = Examples | PackedRun | Difference


@dataclass(frozen=True)
class Accepted:
    """What a trainer can take, and what it has.

    previous: the digest of a subset that it has; empty where it has none.
    packed: whether it reads packed runs.
    received: the digest of the subset of which it was being sent the examples; empty for none.
    num_received: how many of these have come.
    """

    previous: str = ""
    packed: bool = False
    received: str = ""
    num_received: int = 0


@dataclass(frozen=True)
class Sending:
    """What is sent of a subset.

    difference_to: the digest of the subset that `content` is the difference to; empty where
        it is all examples.
    packed: whether examples are sent packed.
    resumed_at: how many examples are left out, because they have come before.
    """

    content: StoredExamples | Difference
    difference_to: str = ""
    packed: bool = False
    resumed_at: int = 0

    def parts(self) -> Iterator[Part]:
        """The content in messages' sizes; none at all where there is nothing to send.

        Each is read when it is asked for, from the disk: do so in a thread.

        Raises:
            LiptError: the subset's file is gone, or cut.
        """
        if isinstance(self.content, Difference):
            yield from _parts_of(self.content)
        elif self.packed:
            for place in runs_of(len(self.content), self.resumed_at):
                yield pack(self.content.read(place))
        else:
            for start in range(self.resumed_at, len(self.content), _EXAMPLES_PER_PART):
                yield self.content.read(slice(start, start + _EXAMPLES_PER_PART))


class SubsetContents:
    """Reads stored subsets."""

    def __init__(self, database: Database, verification: Verification) -> None:
        self._database = database
        self._verification = verification

    async def sending(self, subset: SubsetRecord, accepted: Accepted) -> Sending:
        """The shorter one of a subset's examples and what differs from a previous one.

        A previous subset that is not of the same run, or cannot be read any more, is as none.
        Examples that have come before are not sent again, and nothing is compared then.

        Args:
            subset: what is asked for.
            accepted: what the trainer can take, and has.

        Raises:
            LiptError: the subset's blob is gone, or damaged.
        """
        new, resumed_at = await self._stored(subset), 0
        if accepted.received == subset.digest:
            resumed_at = max(0, min(accepted.num_received, len(new)))
        whole = Sending(new, packed=accepted.packed, resumed_at=resumed_at)
        if resumed_at or len(new) > _MOST_COMPARED:
            return whole
        old = await self._find(subset.run_id, accepted.previous)
        if old is None or len(old) > _MOST_COMPARED:
            return whole
        found = await asyncio.to_thread(_shorter_difference, old, new, packed=accepted.packed)
        return whole if found is None else Sending(found, difference_to=accepted.previous)

    async def read(self, subset: SubsetRecord) -> Examples:
        """All examples of a subset, ascending, and their weights.

        Raises:
            LiptError: its blob is gone, or damaged.
        """
        stored = await self._stored(subset)
        return await asyncio.to_thread(stored.read)

    async def _stored(self, subset: SubsetRecord) -> StoredExamples:
        path = await self._verification.path(subset.blob)
        return StoredExamples(path, subset.num_examples)

    async def _find(self, run_id: str, digest: str) -> StoredExamples | None:
        if digest:
            # Equal digests are equal examples: any of them will do.
            for subset in await self._database.find_subsets(run_id, digest):
                with contextlib.suppress(LiptError):
                    return await self._stored(subset)
        return None


def _shorter_difference(
    old: StoredExamples, new: StoredExamples, *, packed: bool
) -> Difference | None:
    """The difference of two subsets, where that is fewer bytes than the new one."""
    whole = new.read()
    difference = find_difference(old.read(), whole)
    whole_bytes = packed_bytes(whole) if packed else examples_bytes(whole)
    return difference if difference_bytes(difference) < whole_bytes else None


def _parts_of(difference: Difference) -> Iterator[Difference]:
    changed = difference.changed
    for start in range(0, max(len(difference.removed_R), len(changed)), _EXAMPLES_PER_PART):
        place = slice(start, start + _EXAMPLES_PER_PART)
        some = Examples(changed.indices_K[place], changed.weights_K[place])
        yield Difference(difference.removed_R[place], some)
