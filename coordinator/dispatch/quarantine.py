"""Quarantine: learners that seem to end the workers that train them, as a pure decision.

A worker falls silent because it lost its power, network or rented machine, or because its learner
asked for more than the machine has. A learner is deterministic, so the second happens at the same
step every time. A silent end (an expired lease) counts against a learner where

- its worker was not heard again;
- it came at the same step as the latest one, and those in between;
- it is the learner's own, or one of its run, whose learners all cost the same, as long as none of
  them was committed or has passed that step.

From the third on the learner is in quarantine. No attempt counts (`max_attempts` is for errors),
but all other learners go first. One such learner of a run is tried at a time, after a pause that
doubles with every worker that it ended. One that passes the step, or is committed, frees the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile

from lipt.common.states import LearnerState, RunState
from lipt.coordinator.dispatch.leases import AssignmentKey
from lipt.coordinator.runs.store import RunStore
from lipt.coordinator.state.records import LearnerRecord, RunRecord, SilentEnd

MAX_SILENT_ENDS = 3
_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 60.0, 3600.0
_MAX_NAMED = 3
# The furthest step that a worker has reported of a run.
Furthest = Callable[[RunRecord], int]


@dataclass(frozen=True)
class HeldBack:
    """Learners in quarantine, and those of them that may be tried when nothing else waits."""

    learners: frozenset[AssignmentKey] = frozenset()
    trials: tuple[AssignmentKey, ...] = ()


NOTHING_HELD_BACK = HeldBack()


def held_back(
    runs: Iterable[RunRecord],
    *,
    furthest: Furthest,
    now: float,
    reserved: Collection[AssignmentKey] = (),
) -> HeldBack:
    """The learners in quarantine, and those that are due to be tried.

    Args:
        runs: oldest first.
        furthest: gives a run's furthest reported step.
        now: seconds, on the clock of `SilentEnd.at`.
        reserved: learners that are being handed out.
    """
    learners: set[AssignmentKey] = set()
    trials: list[AssignmentKey] = []
    for run in runs:
        if run.state is not RunState.TRAINING or not any(it.silent_ends for it in run.learners):
            continue
        suspects = quarantined(run, furthest=furthest(run))
        keys = {index: AssignmentKey(run.run_id, index) for index in suspects}
        learners.update(keys.values())
        if not keys or any(key in reserved for key in keys.values()):
            continue
        index = _to_be_tried(run, suspects, now)
        if index is not None:
            trials.append(keys[index])
    return HeldBack(frozenset(learners), tuple(trials))


def quarantined(run: RunRecord, *, furthest: int = 0) -> Mapping[int, tuple[SilentEnd, ...]]:
    """The learners of a run in quarantine, each with the silent ends against it, oldest first.

    `furthest` is the furthest step that a worker has reported of the run.
    """
    own = {learner.index: learner.silent_ends for learner in run.learners if learner.silent_ends}
    if not own:
        return {}
    everybodys = _in_a_row(end for ends in own.values() for end in ends)
    one_is_in = any(learner.state is LearnerState.DONE for learner in run.learners)
    shared = () if one_is_in or furthest > everybodys[-1].step else everybodys
    found = {}
    for learner in run.learners:
        ends = max(shared, _in_a_row(own.get(learner.index, ())), key=len)
        if learner.state.open and len(ends) >= MAX_SILENT_ENDS:
            found[learner.index] = ends
    return found


def account_of(run: RunRecord, *, furthest: int = 0) -> str:
    """A sentence on a run's learners in quarantine; empty where there are none."""
    suspects = quarantined(run, furthest=furthest)
    if not suspects:
        return ""
    ends = max(suspects.values(), key=len)
    names = ", ".join(dict.fromkeys(end.worker_name for end in ends[-_MAX_NAMED:]))
    whose = f"learner {next(iter(suspects))}" if len(suspects) == 1 else f"{len(suspects)} learners"
    return (
        f"{whose} in quarantine: {len(ends)} workers in a row (last {names}) fell silent after "
        f"step {ends[-1].step} and were not heard again. Others go first, one is tried at times: "
        "look in a worker's log and its system's for killed processes (learners.batch_size, the "
        "model)"
    )


def furthest_step(run: RunRecord, store: RunStore) -> int:
    """The furthest step that a worker has reported of a run's learners."""
    return max(
        (
            store.progress(run.run_id, learner.index).step
            for learner in run.learners
            if learner.state is LearnerState.LEASED
        ),
        default=0,
    )


def _in_a_row(ends: Iterable[SilentEnd]) -> tuple[SilentEnd, ...]:
    newest_first = sorted(ends, key=lambda end: -end.at)
    alike = takewhile(lambda end: end.step == newest_first[0].step, newest_first)
    return tuple(alike)[::-1]


def _to_be_tried(
    run: RunRecord, suspects: Mapping[int, tuple[SilentEnd, ...]], now: float
) -> int | None:
    learners = [run.learners[index] for index in suspects]
    if any(learner.state is LearnerState.LEASED for learner in learners):
        return None

    def num_ended(learner: LearnerRecord) -> int:
        return len(learner.silent_ends)

    # Always the same one: its own count says how often that was tried.
    tried = max(learners, key=num_ended)
    latest = max(ends[-1].at for ends in suspects.values())
    pause = min(_MAX_PAUSE_SECONDS, _PAUSE_SECONDS * 2 ** max(0, num_ended(tried) - 1))
    return tried.index if now >= latest + pause else None
