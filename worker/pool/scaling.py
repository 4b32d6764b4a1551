"""Scaling: how many workers there should be, as pure decisions; the clock is an argument.

A pool grows as soon as there are more open learners than workers. It shrinks slowly, and nobody is
taken away who has a learner: a worker that got none for a while leaves by itself, and the pool ends
workers only where no learner is open at all. So a pause between two runs, shorter than that while,
costs no worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lipt.common.backoff import Backoff

# A worker that ended with an error before it was so old has probably never worked.
YOUNG_SECONDS = 60.0
_BACKOFF = Backoff(first_seconds=1.0, max_seconds=60.0)


@dataclass(frozen=True)
class Demand:
    """Open learners at the coordinator, and ranges for workers that have the data.

    num_queued: they wait for a worker.
    num_leased: workers have them.
    num_coming: their runs are on the way to training.
    num_ranges: of passes over the data, for workers that have it; 0 where these have not.
    """

    num_queued: int = 0
    num_leased: int = 0
    num_coming: int = 0
    num_ranges: int = 0

    @property
    def num_open(self) -> int:
        """All of them."""
        return self.num_queued + self.num_leased + self.num_coming + self.num_ranges


@dataclass(frozen=True)
class Bounds:
    """How many workers there may be: `fewest` also when nothing is to do."""

    fewest: int
    most: int


@dataclass(frozen=True)
class Plan:
    """What is to change: so many workers are started, or all above the fewest are ended."""

    num_to_start: int = 0
    shrink: bool = False
    reason: str = ""


def plan(
    demand: Demand,
    num_present: int,
    bounds: Bounds,
    *,
    quiet_since: float,
    idle_seconds: float,
    not_before: float,
    now: float,
) -> Plan:
    """What to do about the number of workers.

    Args:
        demand: what there is to do.
        num_present: workers that were started and have not ended, placed or not.
        bounds: how many there may be.
        quiet_since: when `demand` last had an open learner.
        idle_seconds: how long workers stay with nothing to do.
        not_before: no worker is started earlier; see `Restraint`.
        now: on the same clock.
    """
    wanted = max(bounds.fewest, min(bounds.most, demand.num_open))
    missing = wanted - num_present
    if missing > 0:
        if now < not_before:
            return Plan()
        return Plan(missing, reason=_why_more(demand, wanted, bounds))
    quiet_seconds = now - quiet_since
    if num_present > bounds.fewest and not demand.num_open and quiet_seconds >= idle_seconds:
        return Plan(shrink=True, reason=f"there has been no learner for {quiet_seconds:.0f} s")
    return Plan()


def _why_more(demand: Demand, wanted: int, bounds: Bounds) -> str:
    if demand.num_open < bounds.fewest:
        return f"there are always {bounds.fewest}"
    words = {
        "waiting": demand.num_queued,
        "with a worker": demand.num_leased,
        "about to come": demand.num_coming,
        "ranges of a pass over the data": demand.num_ranges,
    }
    counts = ", ".join(f"{count} {word}" for word, count in words.items() if count)
    most = f", and there are {wanted} workers at most" if demand.num_open > wanted else ""
    return f"learners: {counts}{most}"


@dataclass(frozen=True)
class Restraint:
    """How long to wait before workers are started again, after some were started for nothing.

    num_in_vain: so many in a row ended with an error before they can have done anything, or left
        again without a learner while learners waited.
    not_before: when the next may start.
    """

    num_in_vain: int = 0
    not_before: float = -math.inf

    def after_end(self, *, failed: bool, age_seconds: float, now: float) -> Restraint:
        """What it is after a worker's end; one that got old is no reason to wait."""
        if not failed:
            return self
        if age_seconds >= YOUNG_SECONDS:
            return Restraint()
        return self.after_vain(now)

    def after_vain(self, now: float, *, at_least_seconds: float = 0.0) -> Restraint:
        """What it is after a worker that was started for nothing.

        Workers that end at the same time are one reason to wait, not many.
        """
        if now < self.not_before:
            return self
        number = self.num_in_vain + 1
        pause = max(_BACKOFF.pause_seconds(number), at_least_seconds)
        return Restraint(number, now + pause)
