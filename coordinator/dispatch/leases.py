"""Lease table: who trains which learner, and until when it has to be heard from.

Leases live in memory and are timed by a monotonic clock, which a change of the
machine's time does not move. A heartbeat costs no write.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from lipt.common.errors import StaleLeaseError
from lipt.coordinator.dispatch.assignment import AssignmentKey

# A busy process may come late by this; one that comes later was stopped.
_MAX_LATE_SECONDS = 1.0


@dataclass(frozen=True)
class Lease:
    """Who trains a learner, and until when it has to be heard from (monotonic seconds)."""

    worker_id: str
    epoch: int
    expires_at: float
    # It was begun anew after a stop, and its worker has not been heard since.
    spared: bool = False


class LeaseTable:
    """The leases of one coordinator."""

    def __init__(self, duration_seconds: float, clock: Callable[[], float]) -> None:
        self.duration_seconds = duration_seconds
        self._clock = clock
        self._leases: dict[AssignmentKey, Lease] = {}
        self._added = asyncio.Event()

    def grant(self, key: AssignmentKey, worker_id: str, epoch: int) -> None:
        """Begin a lease; an older one of the same learner is over."""
        self._begin(key, worker_id, epoch)
        self._added.set()

    def require(self, key: AssignmentKey, worker_id: str, epoch: int) -> None:
        """Refuse a worker that does not hold the learner's present lease.

        Raises:
            StaleLeaseError: somebody else does, or nobody.
        """
        lease = self._leases.get(key)
        if lease is None or lease.worker_id != worker_id or lease.epoch != epoch:
            now = f"its epoch is {lease.epoch}" if lease else "nobody holds it now"
            raise StaleLeaseError(
                f"learner {key}: the lease with epoch {epoch} is over ({now}); "
                "the result is not used. Ask for the next assignment."
            )

    def renew(self, key: AssignmentKey, worker_id: str, epoch: int) -> None:
        """Keep a lease for another duration from now.

        Raises:
            StaleLeaseError: the worker does not hold it.
        """
        self.require(key, worker_id, epoch)
        self._begin(key, worker_id, epoch)

    def extend(self, key: AssignmentKey, seconds: float) -> None:
        """Let a lease end `seconds` from now."""
        self._leases[key] = replace(self._leases[key], expires_at=self._clock() + seconds)

    def end(self, key: AssignmentKey) -> None:
        """Forget a lease; harmless when there is none."""
        self._leases.pop(key, None)

    def end_run(self, run_id: str) -> None:
        """Forget all leases of a run."""
        for key in [key for key in self._leases if key.run_id == run_id]:
            del self._leases[key]

    def held_by(self, worker_id: str) -> AssignmentKey | None:
        """The learner that a worker has the lease of."""
        return next(
            (key for key, lease in self._leases.items() if lease.worker_id == worker_id), None
        )

    def has(self, key: AssignmentKey, epoch: int) -> bool:
        """Whether the learner's present lease is the one of that epoch."""
        lease = self._leases.get(key)
        return lease is not None and lease.epoch == epoch

    def __len__(self) -> int:
        return len(self._leases)

    def holders(self) -> set[str]:
        """The workers that hold a lease."""
        return {lease.worker_id for lease in self._leases.values()}

    def expired(self) -> tuple[tuple[AssignmentKey, Lease], ...]:
        """The leases whose end has passed."""
        now = self._clock()
        return tuple(item for item in self._leases.items() if item[1].expires_at <= now)

    def _begin(self, key: AssignmentKey, worker_id: str, epoch: int) -> None:
        self._leases[key] = Lease(worker_id, epoch, self._clock() + self.duration_seconds)

    async def wait_until_due(self) -> float:
        """Wait until a lease may have ended, or a new one begins.

        While this process is stopped (SIGSTOP, a machine that is moved) it hears nobody:
        afterwards all leases begin anew, as after a restart; but none a second time
        before its worker was heard, or a machine that is always late would keep them for ever.

        Returns:
            For how many seconds it was stopped; 0 where it was not.
        """
        self._added.clear()
        now = self._clock()
        ends = min((lease.expires_at for lease in self._leases.values()), default=math.inf)
        due = max(ends, now)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if due == math.inf else due - now):
                await self._added.wait()
        now = self._clock()
        late = now - due
        if late <= _MAX_LATE_SECONDS:
            return 0.0
        anew = now + self.duration_seconds
        for key, lease in self._leases.items():
            if not lease.spared:
                self._leases[key] = replace(lease, expires_at=anew, spared=True)
        return late


def steady_clock(
    wall_clock: Callable[[], float], monotonic: Callable[[], float]
) -> Callable[[], float]:
    """Seconds since 1970 as the wall clock has them now, and from here on as time passes.

    Deadlines are counted on it: they are written down, so a monotonic clock alone,
    which begins anew with the machine, would not do.
    """
    offset = wall_clock() - monotonic()
    return lambda: monotonic() + offset
