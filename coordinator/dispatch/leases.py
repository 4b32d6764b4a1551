"""Lease table: who trains which learner, and until when it has to be heard from.

Who holds a lease, and under which epoch, is what the run's record says; the table follows the
durable ones, and adds the time. That lives in memory and is counted on a monotonic clock, which a
change of the machine's time does not move. A heartbeat costs no write.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from lipt.common.errors import StaleLeaseError
from lipt.common.states import LearnerState, RunState
from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.state.records import LearnerRecord, RunRecord

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


def require_lease(run: RunRecord, key: AssignmentKey, worker_id: str, epoch: int) -> None:
    """Refuse a worker that does not hold the learner's present lease, as a record has it.

    Inside of a change this holds until that is durable: the record has every change before it.

    Raises:
        StaleLeaseError: somebody else does, or nobody.
    """
    learner = run.learners[key.learner]
    is_out = _is_out(run, learner)
    if not is_out or learner.worker_id != worker_id or learner.epoch != epoch:
        now = f"its epoch is {learner.epoch}" if is_out else "nobody holds it now"
        raise StaleLeaseError(
            f"learner {key}: the lease with epoch {epoch} is over ({now}); "
            "the result is not used. Ask for the next assignment."
        )


def _is_out(run: RunRecord, learner: LearnerRecord) -> bool:
    return run.state is RunState.TRAINING and learner.state is LearnerState.LEASED


class LeaseTable:
    """The leases of one coordinator."""

    def __init__(self, duration_seconds: float, clock: Callable[[], float]) -> None:
        self.duration_seconds = duration_seconds
        self._clock = clock
        self._leases: dict[AssignmentKey, Lease] = {}
        # The same by worker; one at a time, unless an answer to it was lost.
        self._held: dict[str, dict[AssignmentKey, None]] = {}
        self._added = asyncio.Event()

    def follow(self, run: RunRecord, learners: Iterable[LearnerRecord]) -> None:
        """Begin and end leases as a durable record has them; those that go on are not renewed.

        Args:
            run: the record.
            learners: those of its learners that have changed.
        """
        if run.state is not RunState.TRAINING:
            for key in [key for key in self._leases if key.run_id == run.run_id]:
                self._end(key)
            return
        for learner in learners:
            key = AssignmentKey(run.run_id, learner.index)
            if not _is_out(run, learner):
                self._end(key)
            elif not self.has(key, learner.epoch):
                self._end(key)
                self.renew(key, learner.worker_id, learner.epoch)

    def renew(self, key: AssignmentKey, worker_id: str, epoch: int) -> None:
        """Let a lease last for another duration from now; its holder has been heard."""
        if not self._leases:
            self._added.set()
        self._leases[key] = Lease(worker_id, epoch, self._clock() + self.duration_seconds)
        self._held.setdefault(worker_id, {})[key] = None

    def extend(self, key: AssignmentKey, seconds: float) -> None:
        """Let a lease end `seconds` from now; harmless when there is none."""
        lease = self._leases.get(key)
        if lease is not None:
            self._leases[key] = replace(lease, expires_at=self._clock() + seconds)

    def held_by(self, worker_id: str) -> AssignmentKey | None:
        """The learner that a worker has the lease of."""
        return next(iter(self._held.get(worker_id, ())), None)

    def has(self, key: AssignmentKey, epoch: int) -> bool:
        """Whether the learner's present lease is the one of that epoch."""
        lease = self._leases.get(key)
        return lease is not None and lease.epoch == epoch

    def __len__(self) -> int:
        return len(self._leases)

    def holders(self) -> AbstractSet[str]:
        """The workers that hold a lease."""
        return self._held.keys()

    def expired(self) -> tuple[tuple[AssignmentKey, Lease], ...]:
        """The leases whose end has passed."""
        now = self._clock()
        return tuple(item for item in self._leases.items() if item[1].expires_at <= now)

    def _end(self, key: AssignmentKey) -> None:
        lease = self._leases.pop(key, None)
        if lease is None:
            return
        held = self._held[lease.worker_id]
        del held[key]
        if not held:
            del self._held[lease.worker_id]

    async def wait_until_due(self) -> float:
        """Wait until a lease may have ended, or, where there is none, one begins.

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
