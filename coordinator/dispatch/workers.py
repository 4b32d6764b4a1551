"""Worker registry: a bounded number of registered workers and their last calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from lipt.common.errors import ForeignWorkerError, PermissionDeniedError, UnknownWorkerError
from lipt.common.imports import is_allowed, modules_of
from lipt.common.process.devices import kind_of
from lipt.coordinator.access.caller import ANYBODY, CallCredentials, Caller, worker_id_of
from lipt.coordinator.state.records import LearnerRecord, RunRecord

logger = logging.getLogger(__name__)

# Longer than the longest poll. A worker silent for this long counts as lost.
_ALIVE_SECONDS = 90.0
# Beyond that the longest silent one is forgotten; if it returns, it registers again.
_MAX_WORKERS = 10_000


@dataclass(frozen=True)
class WorkerRecord:
    """A registered worker."""

    worker_id: str
    name: str
    device: str
    versions: dict[str, str]
    allowed_modules: tuple[str, ...]
    heard_at: float = 0.0
    # Runs whose learners, and scans whose ranges, it has declined.
    declined: frozenset[str] = frozenset()
    # Whose credentials it showed last.
    caller: Caller = ANYBODY
    # Wall clock.
    joined_at: float = 0.0
    # Whether it can read the data, and so score ranges.
    has_data: bool = False
    # The source whose data it holds.
    source: str = ""

    @property
    def credential(self) -> str:
        """Its owner: a certificate, a token, or else its id. No owner confirms itself."""
        if self.caller.certificate:
            return self.caller.name
        return self.caller.key if self.caller.only_works else self.worker_id

    @property
    def kind(self) -> str:
        """Device, processor and PyTorch version, which determine a learner's exact bits."""
        return kind_of(self.device, self.versions)

    def has_data_of(self, learner: LearnerRecord) -> bool:
        """Whether it has the learner's data, or gets its shard."""
        own = learner.own_source
        return not own or (own == self.source and self.caller.may_hold(own))

    def can_run(self, run: RunRecord, learner: LearnerRecord | None = None) -> bool:
        """Whether it may build the run's model, has not declined the run, and has the data."""
        return not self.refusal(run) and (learner is None or self.has_data_of(learner))

    def refusal(self, run: RunRecord) -> str:
        """Why it cannot train the run's learners, as a text after "does not"; or empty."""
        if run.run_id in self.declined:
            return "have room for it (its --max-threads or --max-memory)"
        return self.refusal_of_model(run.config.model)

    def refusal_of_model(self, model: str) -> str:
        """Why it cannot build this model, as a text after "does not"; or empty."""
        for module in modules_of(model):
            if not is_allowed(module, self.allowed_modules):
                return f"allow `{module}` (--allow-module {module})"
        return ""


class WorkerRegistry:
    """The registered workers of one coordinator."""

    def __init__(self, clock: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._clock, self._wall_clock = clock, wall_clock
        self._workers: dict[str, WorkerRecord] = {}

    def register(self, worker: WorkerRecord, secret: str) -> WorkerRecord:
        """Register a worker, or again one whose id its secret gives; returns it with its times.

        PermissionDeniedError if its credentials are not for the source that it holds.
        """
        worker_id, caller, source = worker.worker_id, worker.caller, worker.source
        if source and not caller.may_hold(source):
            raise PermissionDeniedError(
                f"{caller.name} has no worker that holds the source {source}. Create its token "
                "with: lipt token create --role worker --source NAME"
            )
        joined_at = self._wall_clock()
        if worker_id in self._workers:
            self.require(worker_id, CallCredentials(caller, secret))
            joined_at = self._workers[worker_id].joined_at
        else:
            logger.info("worker %s (%s) joined on %s", worker.name, worker_id, worker.device)
            if worker.has_data and not caller.may_score:
                logger.warning(
                    "worker %s has the data, and scores none of it: %s may not (lipt token create "
                    "--role worker --scores, or lipt certs worker --scores)",
                    *(worker.name, caller.name),
                )
        worker = replace(worker, heard_at=self._clock(), joined_at=joined_at)
        while len(self._workers) >= _MAX_WORKERS:
            del self._workers[min(self._workers, key=lambda key: self._workers[key].heard_at)]
        self._workers[worker_id] = worker
        return worker

    def require(self, worker_id: str, shown: CallCredentials) -> None:
        """Refuse a call under another worker's id; the secret alone proves an unregistered one."""
        worker = self._workers.get(worker_id)
        if worker is None:
            if not shown.proves(worker_id):
                raise _unknown(worker_id)
        elif objection := shown.objection(worker_id, worker.caller):
            raise ForeignWorkerError(
                f"the call under worker id {worker_id} {objection}. Register, and use your own id "
                "and secret."
            )
        elif shown.caller != worker.caller:
            # Permissions follow from the credentials of the present call.
            self._workers[worker_id] = replace(worker, caller=shown.caller)

    def behind(self, shown: CallCredentials) -> str | None:
        """The id of the worker whose secret is shown; empty without one, None if it is wrong."""
        if not shown.secret:
            return "" if shown.caller.only_works else None
        worker_id = worker_id_of(shown.secret)
        self.require(worker_id, shown)
        return worker_id

    def note_call(self, worker_id: str) -> WorkerRecord:
        """Mark the worker as heard; an UnknownWorkerError if it is not registered."""
        worker = self._workers.get(worker_id)
        if worker is None:
            raise _unknown(worker_id)
        worker = replace(worker, heard_at=self._clock())
        self._workers[worker_id] = worker
        return worker

    def decline(self, worker_id: str, run_id: str) -> None:
        """Give a worker no more learners of a run, or ranges of a scan."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            declined = worker.declined | {run_id}
            self._workers[worker_id] = replace(worker, declined=declined)

    def find(self, worker_id: str) -> WorkerRecord | None:
        return self._workers.get(worker_id)

    def name(self, worker_id: str) -> str:
        worker = self._workers.get(worker_id)
        return worker.name if worker else worker_id

    def scorer(self, worker_id: str) -> str:
        """The credential of a registered worker's scores."""
        return self.note_call(worker_id).caller.label

    def alive(self, present: Collection[str]) -> tuple[WorkerRecord, ...]:
        since = self._clock() - _ALIVE_SECONDS
        return tuple(
            worker
            for worker in self._workers.values()
            if worker.worker_id in present or worker.heard_at >= since
        )

    def seconds_since_last_call(self, worker: WorkerRecord) -> float:
        return self._clock() - worker.heard_at


def _unknown(worker_id: str) -> UnknownWorkerError:
    return UnknownWorkerError(
        f"worker {worker_id!r} is not registered with this coordinator. Register again."
    )
