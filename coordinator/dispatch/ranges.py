"""Range table: which ranges of one scan workers have, and which they are given next.

The first that nobody has goes first; the job that needs them begins at the other end. Where none is
left, a worker is given one that another has had longest: who is slow, or gone, holds nobody up, and
what came first counts. Ranges follow from their examples alone, so nothing is lost by that but time
that the worker had anyway. Leases live in memory; what is done lies on the disk.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

# Of these, how many may work on one range.
_MOST_AT_ONCE = 2


@dataclass(frozen=True)
class RangeLease:
    """A worker's range, until when it has to be heard from (monotonic seconds), and since when."""

    index: int
    worker_id: str
    epoch: int
    since: float
    expires_at: float


class RangeTable:
    """The ranges of one scan; times are passed in."""

    def __init__(self, num_ranges: int, present: Collection[int] = ()) -> None:
        """Begin with what is there.

        Args:
            num_ranges: of the scan.
            present: those that are done.
        """
        self._done = set(present)
        self._free = [index for index in range(num_ranges) if index not in self._done]
        self._out: dict[int, RangeLease] = {}
        # Those that a worker failed on.
        self._left: set[int] = set()
        # Who is given none any more.
        self._excluded: set[str] = set()
        self._last_epoch = 0

    def take(self, worker_id: str, now: float, *, lease_seconds: float) -> RangeLease | None:
        """The worker's next range under a new lease, or None where there is none for it."""
        self._expire(now)
        if worker_id in self._excluded:
            return None
        index = self._next_free()
        if index is None:
            index = self._slowest(worker_id)
        if index is None:
            return None
        self._last_epoch += 1
        lease = RangeLease(index, worker_id, self._last_epoch, now, now + lease_seconds)
        self._out[lease.epoch] = lease
        return lease

    def held_by(self, worker_id: str) -> RangeLease | None:
        """What a worker has; None where that is nothing."""
        return next((lease for lease in self._out.values() if lease.worker_id == worker_id), None)

    def find(self, index: int, epoch: int) -> RangeLease | None:
        """The lease of a range with that epoch, where it still holds."""
        lease = self._out.get(epoch)
        return lease if lease is not None and lease.index == index else None

    def renew(self, lease: RangeLease, now: float, *, lease_seconds: float) -> None:
        """Its worker was heard from."""
        self._out[lease.epoch] = replace(lease, expires_at=now + lease_seconds)

    def end(self, lease: RangeLease, *, failed: bool = False) -> None:
        """Its worker has it no more; harmless where that was so already.

        Where the range is not done, and no other worker has it, it is free; where its worker has
        failed on it, no worker is given it again: the job computes it, and sees why.
        """
        if failed:
            self._left.add(lease.index)
        if self._out.pop(lease.epoch, None) is not None:
            self._set_free(lease.index)

    def finish(self, index: int) -> None:
        """A range is done; whoever still has it is told so at the next heartbeat."""
        self._done.add(index)
        for lease in tuple(self._of(index)):
            del self._out[lease.epoch]

    def exclude(self, worker_id: str, wanted: Collection[int] = ()) -> None:
        """Give a worker nothing any more; `wanted` of what it has done are wanted again."""
        self._excluded.add(worker_id)
        self._done -= set(wanted)
        for index in wanted:
            self._set_free(index)

    def is_done(self, index: int) -> bool:
        """Whether a range is there."""
        return index in self._done

    @property
    def waits(self) -> bool:
        """Whether a range waits for a worker."""
        return any(index not in self._done for index in self._free)

    def _next_free(self) -> int | None:
        while self._free:
            index = heapq.heappop(self._free)
            if index not in self._done:
                return index
        return None

    def _slowest(self, worker_id: str) -> int | None:
        for lease in sorted(self._out.values(), key=lambda lease: lease.since):
            holders = [other.worker_id for other in self._of(lease.index)]
            wanted = lease.index not in self._done | self._left
            if wanted and worker_id not in holders and len(holders) < _MOST_AT_ONCE:
                return lease.index
        return None

    def _of(self, index: int) -> Iterator[RangeLease]:
        return (lease for lease in self._out.values() if lease.index == index)

    def _expire(self, now: float) -> None:
        for lease in [lease for lease in self._out.values() if lease.expires_at < now]:
            self.end(lease)

    def _set_free(self, index: int) -> None:
        wanted = index not in self._done | self._left
        if wanted and not any(self._of(index)) and index not in self._free:
            heapq.heappush(self._free, index)
