"""Demand: how many learners and ranges there are for workers, for whoever starts and ends them.

Counted over all runs, whoever may train them. A run that is on its way to training counts too:
a machine for its learners may take minutes to come up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from lipt.common.states import LearnerState, RunState
from lipt.coordinator.dispatch.scans import Scans
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.records import RunRecord

_BEFORE_TRAINING = frozenset({RunState.PENDING, RunState.INITIALIZING, RunState.SHARDING})


@dataclass(frozen=True)
class Demand:
    """Open learners: they wait for a worker, a worker has them, or their runs come to training.

    num_ranges: of passes over the data of which some wait for a worker that has it.
    """

    num_queued: int = 0
    num_leased: int = 0
    num_coming: int = 0
    num_ranges: int = 0


def demand_of(runs: Iterable[RunRecord]) -> Demand:
    """The open learners of these runs."""
    learners: Counter[LearnerState] = Counter()
    num_coming = 0
    for run in runs:
        if run.state is RunState.TRAINING:
            learners += run.count()
        elif run.state in _BEFORE_TRAINING:
            num_coming += run.config.learners.num_learners
    return Demand(learners[LearnerState.QUEUED], learners[LearnerState.LEASED], num_coming)


class DemandWatch:
    """The demand of runs and scans, and a wait for it to change; runs that are held have none."""

    def __init__(self, store: RunStore, scans: Scans) -> None:
        self._store = store
        self._scans = scans
        self._changed = asyncio.Event()
        store.listen(lambda _: self._on_change())
        scans.listen(self._on_change)

    def current(self) -> Demand:
        """What there is now."""
        store = self._store
        learners = demand_of(run for run in store.live() if not store.held(run.run_id))
        return replace(learners, num_ranges=self._scans.num_wanted)

    async def wait(self, known: Demand | None, *, wait_seconds: float) -> Demand:
        """The demand as soon as it is not `known`, or at the time-out; at once without one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                while self.current() == known:
                    await self._changed.wait()
        return self.current()

    def _on_change(self) -> None:
        # Whoever waits now is woken; whoever comes later waits for the next change.
        self._changed.set()
        self._changed = asyncio.Event()
