"""Dispatch policy: pure decisions on a worker's next learner, and on idle reasons.

Quarantine: a learner may crash its workers, for example by using too much memory. Training is
deterministic, so it crashes at the same step each time. After three silent ends in a row at one
step, by workers that never called again, it is tried last, after doubling pauses. Learners of one
run cost the same, so until one of them is in, the silent ends of all count together: a model that
is too large ends three workers, not three for each learner. No failed attempts are counted:
preempted workers stop at random steps, or return.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from lipt.common.states import LearnerState
from lipt.coordinator.dispatch.leases import LearnerAssignment, RunLearner
from lipt.coordinator.dispatch.workers import WorkerRecord
from lipt.coordinator.state.records import LearnerRecord, RunRecord, SilentEnd

MAX_SILENT_ENDS = 3
_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 60.0, 3600.0


class QueuedLearners(NamedTuple):
    """A run in training, and the indices of its queued learners, ascending."""

    run: RunRecord
    indices: Sequence[int]

    def learners(self) -> Iterator[LearnerRecord]:
        return (self.run.learners[index] for index in self.indices)


def consecutive_ends(learner: LearnerRecord, silent: Collection[str]) -> tuple[SilentEnd, ...]:
    """The latest silent ends at one step, newest first, of workers still `silent`."""
    return _in_a_row([end for end in learner.silent_ends if end.worker_id in silent])


def consecutive_ends_of_run(run: RunRecord, silent: Collection[str]) -> tuple[SilentEnd, ...]:
    """The same over all learners of a run; none once a learner is done."""
    if not silent or any(learner.state is LearnerState.DONE for learner in run.learners):
        return ()
    ends = (end for learner in run.learners for end in learner.silent_ends)
    return _in_a_row(sorted((end for end in ends if end.worker_id in silent), key=attrgetter("at")))


def _in_a_row(ends: Sequence[SilentEnd]) -> tuple[SilentEnd, ...]:
    return tuple(takewhile(lambda end: end.step == ends[-1].step, reversed(ends)))


def next_trial_at(ends: Sequence[SilentEnd]) -> float | None:
    """When quarantine by these ends allows another trial; None where they are too few for it."""
    if len(ends) < MAX_SILENT_ENDS:
        return None
    pause = _PAUSE_SECONDS * 2.0 ** (len(ends) - MAX_SILENT_ENDS)
    return ends[0].at + float(min(pause, _MAX_PAUSE_SECONDS))


def candidates(
    waiting: Iterable[QueuedLearners],
    *,
    now: float,
    reserved: Collection[LearnerAssignment] = (),
    silent: Collection[str] = (),
) -> Iterator[RunLearner]:
    """Yield learners that may be leased, by age of run and index, quarantined last."""
    trials: list[RunLearner] = []
    for of_run in waiting:
        due_of_run = next_trial_at(consecutive_ends_of_run(of_run.run, silent))
        if due_of_run is not None:
            is_tried = any(key.run_id == of_run.run.run_id for key in reserved) or any(
                learner.state is LearnerState.LEASED for learner in of_run.run.learners
            )
            if now >= due_of_run and not is_tried:
                # Always the same one, so that the others stay untried.
                learner = max(of_run.learners(), key=lambda each: len(each.silent_ends))
                trials.append(RunLearner(of_run.run, learner))
            continue
        for learner in of_run.learners():
            candidate = RunLearner(of_run.run, learner)
            if reserved and candidate.key in reserved:
                continue
            due = next_trial_at(consecutive_ends(learner, silent)) if learner.silent_ends else None
            if due is None:
                yield candidate
            elif now >= due:
                trials.append(candidate)
    yield from trials


def idle_reason(worker: WorkerRecord, waiting: Iterable[QueuedLearners]) -> str:
    """Why a free worker gets none of the queued learners, as a clause; or empty."""
    reasons = [_refusal_reason(worker, of_run) for of_run in waiting if of_run.indices]
    return reasons[0] if reasons and all(reasons) else ""


def _refusal_reason(worker: WorkerRecord, waiting: QueuedLearners) -> str:
    run = waiting.run
    if refusal := worker.refusal(run):
        return f"cannot train run {run.name}: it does not {refusal}"
    trainable = [learner for learner in waiting.learners() if worker.has_data_of(learner)]
    if not trainable:
        return f"cannot train run {run.name}: it holds none of the sources that wait"
    if any(_is_another(worker, learner) for learner in trainable):
        return ""
    return (
        f"has trained every queued learner of run {run.name}, and learners.redundancy = "
        f"{run.config.learners.redundancy} needs another worker"
    )


def waiting_reason(
    waiting: QueuedLearners, *, alive: Collection[WorkerRecord], silent: Collection[str] = ()
) -> str:
    """Why no worker trains a run's queued learners, as a clause; empty if one can."""
    if suspects := quarantine_reason(waiting, silent):
        return suspects
    run = waiting.run
    sources = {learner.own_source for learner in waiting.learners()} - {""}
    holders = [worker for worker in alive if worker.caller.may_hold(worker.source)]
    if missing := sorted(sources - {worker.source for worker in holders}):
        return (
            f"no worker holds the data of {', '.join(missing)}: start lipt-worker --source NAME "
            "--worker-data DATA there"
        )
    able_of = {worker.source for worker in holders if worker.can_run(run)}
    for worker in sorted(holders, key=lambda worker: worker.name):
        if worker.source in sources - able_of:
            return (
                f"worker {worker.name}, which holds the source {worker.source}, does not "
                f"{worker.refusal(run)}"
            )
    if able := [worker for worker in alive if worker.can_run(run)]:
        return _unconfirmed_reason(run, waiting.learners(), able)
    if not alive:
        return ""
    first = min(alive, key=lambda worker: worker.name)
    and_more = f", and {len(alive) - 1} more cannot train it either" if len(alive) > 1 else ""
    return f"worker {first.name} does not {first.refusal(run)}{and_more}"


def quarantine_reason(waiting: QueuedLearners, silent: Collection[str]) -> str:
    """A clause on a run's quarantined learners; empty without one."""
    for ends, indices in (
        (consecutive_ends_of_run(waiting.run, silent), waiting.indices),
        *((consecutive_ends(each, silent), [each.index]) for each in waiting.learners()),
    ):
        if len(ends) >= MAX_SILENT_ENDS:
            number = len(indices)
            whose = f"{number} learners are" if number > 1 else f"learner {indices[0]} is"
            names = ", ".join(end.worker_name for end in ends[MAX_SILENT_ENDS - 1 :: -1])
            return (
                f"{whose} in quarantine: {len(ends)} workers in a row (last {names}) fell silent "
                f"after step {ends[0].step}. It may need too much memory: look at a worker's log, "
                "learners.batch_size and the model"
            )
    return ""


def new_quarantine(run: RunRecord, index: int, silent: Collection[str]) -> str:
    """A clause on a learner whose latest silent end began its quarantine; else empty."""
    ends = max(
        consecutive_ends(run.learners[index], silent), consecutive_ends_of_run(run, silent), key=len
    )
    begins = len(ends) == MAX_SILENT_ENDS
    return quarantine_reason(QueuedLearners(run, [index]), silent) if begins else ""


def choose_learner(
    worker: WorkerRecord,
    candidates: Iterable[RunLearner],
    *,
    alive: Callable[[], Collection[WorkerRecord]],
) -> RunLearner | None:
    """The first learner for a free worker; others come first for those that it failed."""
    # One run may have thousands of them in a row.
    able: dict[str, bool] = {}
    for candidate in candidates:
        run, learner = candidate
        if run.run_id not in able:
            able[run.run_id] = worker.can_run(run)
        if not able[run.run_id]:
            continue
        if not worker.has_data_of(learner):
            continue
        if learner.unconfirmed and not may_confirm(worker, run, learner, alive=alive()):
            continue
        if worker.worker_id in learner.failed_on and any(
            other.worker_id not in learner.failed_on and other.can_run(run, learner)
            for other in alive()
        ):
            continue
        return candidate
    return None


def may_confirm(
    worker: WorkerRecord, run: RunRecord, learner: LearnerRecord, *, alive: Collection[WorkerRecord]
) -> bool:
    """Whether a worker may confirm a learner: once per owner, best on a device that can."""
    if not _is_another(worker, learner):
        return False
    kinds = {held.holder.kind for held in learner.unconfirmed}
    return worker.kind in kinds or not any(
        other.kind in kinds and _is_another(other, learner) and other.can_run(run, learner)
        for other in alive
    )


def _unconfirmed_reason(
    run: RunRecord, waiting: Iterable[LearnerRecord], able: Collection[WorkerRecord]
) -> str:
    """Why no two `able` workers can confirm a run's queued learners; empty if two can."""
    num_needed = run.config.learners.redundancy
    credentials = {worker.credential for worker in able}

    def lacks(learner: LearnerRecord) -> bool:
        if learner.unconfirmed:
            return not any(_is_another(worker, learner) for worker in able)
        return len(credentials) < num_needed

    lacking = [learner for learner in waiting if lacks(learner)]
    if not lacking:
        return ""
    kinds = sorted({held.holder.kind for learner in lacking for held in learner.unconfirmed})
    device = f", on such a device: {' or '.join(kinds)}" if kinds else ""
    return (
        f"learners.redundancy = {num_needed} needs another worker for {len(lacking)} learners, "
        f"with its own certificate or token if workers have any{device}"
    )


def _is_another(worker: WorkerRecord, learner: LearnerRecord) -> bool:
    return all(worker.credential != held.holder.credential for held in learner.unconfirmed)
