"""Worker registry: who was heard from not long ago; how many there are is bounded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from lipt.common.errors import ForeignWorkerError, InvalidRequestError, UnknownWorkerError
from lipt.common.models.registry import is_users_own
from lipt.common.process.devices import kind_of
from lipt.coordinator.access.worker_identity import (
    NO_EVIDENCE,
    UNBOUND,
    Binding,
    Evidence,
    party_of,
    worker_id_of,
)
from lipt.coordinator.state.records import RunRecord

logger = logging.getLogger(__name__)

# A worker asks at least this often (its longest poll), or it is gone.
_ALIVE_SECONDS = 90.0
# One that was silent for so long is forgotten; should it come back, it joins again.
_REMEMBERED_SECONDS = 3600.0
_SWEEP_SECONDS = 60.0
# What peers may take in memory; the contract says how long their texts may be.
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
    # What it was told that keeps it from learners that wait.
    idle_reason: str = ""
    # Runs whose learners are too much for it.
    declined: frozenset[str] = frozenset()
    # What its calls have to show.
    binding: Binding = UNBOUND
    # When it joined, on the clock of `heard_at`.
    joined_at: float = 0.0
    # Whether it has the data before it.
    has_data: bool = False

    @property
    def party(self) -> str:
        """Who answers for it."""
        return party_of(self.binding.caller, self.worker_id)

    @property
    def kind(self) -> str:
        """What its learners depend on besides their tasks: device, processor, PyTorch."""
        return kind_of(self.device, self.versions)

    def can_run(self, run: RunRecord) -> bool:
        """Whether it may build the run's model, and has not found its learners too much."""
        return not self.refusal(run)

    def refusal(self, run: RunRecord) -> str:
        """Why it trains none of the run's learners, as what it does not do; empty where it may."""
        if run.run_id in self.declined:
            return "have room for it (its --max-threads or --max-memory)"
        return self.refusal_of_model(run.config.model)

    def refusal_of_model(self, model: str) -> str:
        """Why it builds no such model, likewise."""
        if not is_users_own(model):
            return ""
        module = model.partition(":")[0]
        allows = any(
            module == allowed or module.startswith(f"{allowed}.")
            for allowed in self.allowed_modules
        )
        return "" if allows else f"allow `{module}` (--allow-module {module})"


class WorkerRegistry:
    """Who there is, and when they were last heard from."""

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
        """Make a worker known; the same instance is the same worker, also after a restart.

        Args:
            instance_id: drawn by the worker's process, and known to it alone.
            name: how it is shown.
            device: what it trains on.
            versions: of the libraries that it runs.
            allowed_modules: from which it imports model factories.
            shown: what its calls are bound to from now on.
            has_data: whether it has the data before it.

        Raises:
            InvalidRequestError: the instance has no id.
            ForeignWorkerError: the id is that of a worker that showed something else.
        """
        if not instance_id:
            raise InvalidRequestError("instance_id is empty. Draw one per worker process.")
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

        One that has not registered with this process, as after a restart, proves itself by its
        secret alone.

        Raises:
            ForeignWorkerError: it is somebody else's.
            UnknownWorkerError: it has not registered, and proves nothing.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            if not shown.proves(worker_id):
                raise _unknown(worker_id)
        elif objection := worker.binding.objection(shown):
            raise ForeignWorkerError(
                f"the call under worker id {worker_id} {objection}. Only that worker may use it: "
                "register, and use the id and the secret of your own."
            )

    def behind(self, shown: Evidence) -> tuple[str, ...] | None:
        """The workers that a call may be of, by what it shows; None where it is no worker's.

        An older worker shows no secret: where its caller may do nothing but work, it is any of
        those that registered with the same key.

        Raises:
            ForeignWorkerError: it shows a worker's secret, and not its certificate.
        """
        if shown.secret:
            worker_id = worker_id_of(shown.secret)
            self.require(worker_id, shown)
            return (worker_id,)
        if not shown.caller.only_works:
            return None
        return tuple(
            worker.worker_id
            for worker in self._workers.values()
            if not worker.binding.objection(shown)
        )

    def heard(self, worker_id: str) -> WorkerRecord:
        """The worker, noted as heard from now.

        Raises:
            UnknownWorkerError: it has not registered with this process.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            raise _unknown(worker_id)
        worker = replace(worker, heard_at=self._clock())
        self._workers[worker_id] = worker
        return worker

    def note_idle(self, worker_id: str, reason: str) -> bool:
        """Keep what keeps a worker from learners; whether that is news, and no good news."""
        worker = self._workers[worker_id]
        if worker.idle_reason == reason:
            return False
        self._workers[worker_id] = replace(worker, idle_reason=reason)
        return bool(reason)

    def decline(self, worker_id: str, run_id: str) -> None:
        """Give the worker no learner of that run any more; harmless where it is not known."""
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
        """The workers that are there now.

        Args:
            present: ids of those that wait for work or hold a lease, however long
                ago they said so.
        """
        since = self._clock() - _ALIVE_SECONDS
        return tuple(
            worker
            for worker in self._workers.values()
            if worker.worker_id in present or worker.heard_at >= since
        )

    def seconds_since_heard(self, worker: WorkerRecord) -> float:
        """How long a worker has been silent."""
        return self._clock() - worker.heard_at

    def seconds_since_joined(self, worker: WorkerRecord) -> float:
        """How long a worker has been known."""
        return self._clock() - worker.joined_at

    def _forget(self) -> None:
        """Make room: workers come and go for weeks, each time under another id."""
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
