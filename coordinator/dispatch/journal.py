"""Journal: what befell learners and their workers, counted and logged by their names."""

from __future__ import annotations

import logging

from lipt.common.observability.logs import EventKind, Events, logging_about
from lipt.coordinator.dispatch.assignment import AssignmentKey
from lipt.coordinator.dispatch.workers import WorkerRegistry
from lipt.coordinator.runs.store import RunStore


class Journal:
    """Records events of learners; the log's lines are all warnings."""

    def __init__(self, events: Events, store: RunStore, workers: WorkerRegistry) -> None:
        self._events, self._store, self._workers = events, store, workers

    def record(
        self, kind: EventKind, key: AssignmentKey, worker_id: str, reason: str, *, detail: str = ""
    ) -> None:
        """Something happened to a learner while a worker had it; `detail` as `Events` has it."""
        about = {"run": key.run_id, "assignment": key, "learner": key.learner, "worker": worker_id}
        with logging_about(**about):
            self._events.record(
                kind,
                detail=detail,
                level=logging.WARNING,
                run=self._store.find(key.run_id).name,
                learner=key.learner,
                worker=self._workers.name(worker_id),
                reason=reason,
            )

    def paused(self, seconds: float) -> None:
        """The whole process stood still, so that no lease ended meanwhile."""
        self._events.record(EventKind.PAUSED, level=logging.WARNING, seconds=f"{seconds:.1f}")
