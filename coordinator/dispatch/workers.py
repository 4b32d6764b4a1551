"""Worker registry: the registered workers and their last calls; their number is bounded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from lipt.common.errors import ForeignWorkerError, UnknownWorkerError
from lipt.common.models.registry import is_users_own
from lipt.common.process.devices import kind_of
from lipt.coordinator.access.caller import (
    NO_EVIDENCE,
    UNBOUND,
    Binding,
    Evidence,
    party_of,
    worker_id_of,
)
from lipt.coordinator.state.records import RunRecord

logger = logging.getLogger(__name__)

# The longest poll: a worker that is silent for longer is gone.
_ALIVE_SECONDS = 90.0
# After so long it is forgotten; if it comes back, it registers again.
_REMEMBERED_SECONDS = 3600.0
_SWEEP_SECONDS = 60.0
# Bounds the memory that peers may take.
_MAX_WORKERS = 10_000


@dataclass(frozen=True)
class WorkerRecord:
    """A registered worker."""

    worker_id: str
    name: str
    device: str
    versions: dict[str, str]
    allowed_modules: tuple[str, ...]
    heard_at: float
    # The last reason sent to it why it is idle.
    idle_reason: str = ""
    # Runs whose learners are too much for it.
    declined: frozenset[str] = frozenset()
    # The credentials of its calls.
    binding: Binding = UNBOUND
    # On the clock of `heard_at`.
    joined_at: float = 0.0
    # It can read the data, and so score ranges.
    has_data: bool = False

    @property
    def party(self) -> str:
        """Its certificate or token, or else itself."""
        return party_of(self.binding.caller, self.worker_id)

    @property
    def kind(self) -> str:
        """Device, processor and PyTorch, on which a learner's bits depend."""
        return kind_of(self.device, self.versions)

    def can_run(self, run: RunRecord) -> bool:
        """Whether it may build the run's model, and has not declined its learners."""
        return not self.refusal(run)

    def refusal(self, run: RunRecord) -> str:
        """Why it cannot train the run's learners, after "does not"; empty where it can."""
        if run.run_id in self.declined:
            return "have room for it (its --max-threads or --max-memory)"
        return self.refusal_of_model(run.config.model)

    def refusal_of_model(self, model: str) -> str:
        """Why it cannot build such a model, likewise."""
        if not is_users_own(model):
            return ""
        module = model.partition(":")[0]
        allows = any(
            module == allowed or module.startswith(f"{allowed}.")
            for allowed in self.allowed_modules
        )
        return "" if allows else f"allow `{module}` (--allow-module {module})"


class WorkerRegistry:
    """The workers of one coordinator."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._workers: dict[str, WorkerRecord] = {}
        self._swept_at = clock()

    def register(
        self,
        instance_id: str,
        *,
        name: str,
        device: str,
        versions: Mapping[str, str],
        allowed_modules: tuple[str, ...],
        shown: Evidence = NO_EVIDENCE,
        has_data: bool = False,
    ) -> WorkerRecord:
        """Register a worker, whose calls have to show the same credentials from now on.

        The same instance is the same worker, also after a restart.
        """
        worker_id = worker_id_of(instance_id)
        now = self._clock()
        joined_at = now
        if worker_id in self._workers:
            self.require(worker_id, shown)
            joined_at = self._workers[worker_id].joined_at
        else:
            logger.info("worker %s (%s) joined on %s", name, worker_id, device)
        worker = WorkerRecord(
            worker_id,
            name or worker_id,
            device,
            dict(sorted(versions.items())),
            allowed_modules,
            now,
            binding=Binding.of(shown),
            joined_at=joined_at,
            has_data=has_data,
        )
        self._forget()
        self._workers[worker_id] = worker
        return worker

    def require(self, worker_id: str, shown: Evidence) -> None:
        """Refuse a call under a worker's id that is not of that worker.

        A worker that has not registered with this process proves itself by its secret alone.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            if not shown.proves(worker_id):
                raise _unknown(worker_id)
        elif objection := worker.binding.objection(shown):
            raise ForeignWorkerError(
                f"the call under worker id {worker_id} {objection}. Register, and use your own id "
                "and secret."
            )

    def behind(self, shown: Evidence) -> str | None:
        """The worker of a call by its secret; empty without one, None where it is no worker's."""
        if not shown.secret:
            return "" if shown.caller.only_works else None
        worker_id = worker_id_of(shown.secret)
        self.require(worker_id, shown)
        return worker_id

    def heard(self, worker_id: str) -> WorkerRecord:
        """The worker, noted as heard now; an UnknownWorkerError where it is not registered."""
        worker = self._workers.get(worker_id)
        if worker is None:
            raise _unknown(worker_id)
        worker = replace(worker, heard_at=self._clock())
        self._workers[worker_id] = worker
        return worker

    def note_idle(self, worker_id: str, reason: str) -> bool:
        """Keep a worker's idle reason, and return whether it is a new one."""
        worker = self._workers[worker_id]
        if worker.idle_reason == reason:
            return False
        self._workers[worker_id] = replace(worker, idle_reason=reason)
        return bool(reason)

    def decline(self, worker_id: str, run_id: str) -> None:
        """Give the worker no more learners of that run."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            declined = worker.declined | {run_id}
            self._workers[worker_id] = replace(worker, declined=declined)

    def knows(self, worker_id: str) -> bool:
        """Whether the worker has registered with this process."""
        return worker_id in self._workers

    def find(self, worker_id: str) -> WorkerRecord | None:
        """The worker; None where it is not known."""
        return self._workers.get(worker_id)

    def name(self, worker_id: str) -> str:
        """How a worker is shown; its id where it is not known."""
        worker = self._workers.get(worker_id)
        return worker.name if worker else worker_id

    def version(self, worker_id: str) -> str:
        """The lipt that a worker runs; empty where it is not known."""
        worker = self._workers.get(worker_id)
        return worker.versions.get("lipt", "") if worker else ""

    def alive(self, present: Collection[str]) -> tuple[WorkerRecord, ...]:
        """The workers that were heard recently, or whose ids are in `present`."""
        since = self._clock() - _ALIVE_SECONDS
        return tuple(
            worker
            for worker in self._workers.values()
            if worker.worker_id in present or worker.heard_at >= since
        )

    def seconds_since_heard(self, worker: WorkerRecord) -> float:
        """Seconds since the worker's last call."""
        return self._clock() - worker.heard_at

    def seconds_since_joined(self, worker: WorkerRecord) -> float:
        """Seconds since the worker registered."""
        return self._clock() - worker.joined_at

    def _forget(self) -> None:
        """Make room: workers come back under other ids, for weeks."""
        now = self._clock()
        if now - self._swept_at >= _SWEEP_SECONDS:
            self._swept_at = now
            since = now - _REMEMBERED_SECONDS
            self._workers = {
                key: worker for key, worker in self._workers.items() if worker.heard_at >= since
            }
        while len(self._workers) >= _MAX_WORKERS:
            del self._workers[min(self._workers, key=lambda key: self._workers[key].heard_at)]


def _unknown(worker_id: str) -> UnknownWorkerError:
    return UnknownWorkerError(
        f"worker {worker_id!r} is not registered with this coordinator. Register again."
    )
