"""Lane: jobs that wait in a fair order in front of one executor."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest
from typing import Any, Protocol, TypeVar

from lipt.common.errors import QueueFullError
from lipt.common.observability.logs import EventKind, Events
from lipt.common.observability.metrics import Meters
from lipt.coordinator.compute.messages import Asked, Cost, DroppedError, Job, name_of
from lipt.coordinator.compute.progress import Aside, OnProgress, Progressed
from lipt.coordinator.instruments import JOB, QUEUE_WAIT
from lipt.coordinator.settings import ComputeSettings

# Queue order: which of the jobs that wait is computed next; pure but for the shares' account.
#
# 1.  Cheaper jobs go first; but of nine turns in a row the dearest that wait have one, so that
#     they come to their turn as well.
# 2.  Callers take turns. The next one is who has had least: the seconds that were computed for it
#     lately, less the seconds that it has waited since its last turn.
# 3.  So do the runs of one caller; a run's own jobs have one caller, the pipeline.
# 4.  Of the same run and caller the oldest goes first.
#
# "Lately" is counted as batch systems count it (Slurm's fair share): a second of computing weighs
# half as much after ten minutes. Waiting outweighs in the end whatever was computed before, so that
# nobody starves, not even where others arrive without end.

# A caller, or a caller and one of its runs.
Share = tuple[str, ...]

# The caller of jobs that nobody waits for but their run.
PIPELINE = ""

DEAREST_EVERY = 9
_HALF_LIFE_SECONDS = 600.0
_NOTHING_SECONDS = 1e-3
_PRUNED_FROM = 1024


@dataclass(frozen=True)
class Waiting:
    """A job that waits.

    number: ascending in the order of asking.
    since: when it was asked for, in seconds.
    callers: who waits for it.
    """

    number: int
    since: float
    run: str
    callers: frozenset[str]
    cost: Cost


@dataclass(frozen=True)
class _Account:
    """What a share has had: `seconds` of computing as they weighed at `at`, the end of a turn."""

    seconds: float
    at: float

    def seconds_at(self, now: float) -> float:
        return float(self.seconds * 0.5 ** ((now - self.at) / _HALF_LIFE_SECONDS))


class Shares:
    """What was computed lately, and for whom."""

    def __init__(self) -> None:
        self._accounts: dict[Share, _Account] = {}
        self._pruned_at = _PRUNED_FROM

    def charge(self, job: Waiting, seconds: float, now: float) -> None:
        """Note that a job was computed; those who waited for it share what it took."""
        for caller in job.callers:
            for share in ((caller,), (caller, job.run)):
                had = self._accounts.get(share, _Account(0.0, now)).seconds_at(now)
                self._accounts[share] = _Account(had + seconds / len(job.callers), now)
        if len(self._accounts) > self._pruned_at:
            self._accounts = {
                share: account
                for share, account in self._accounts.items()
                if account.seconds_at(now) > _NOTHING_SECONDS
            }
            self._pruned_at = max(_PRUNED_FROM, 2 * len(self._accounts))

    def due(self, share: Share, since: float, now: float) -> float:
        """Who has the least of this is next.

        Args:
            share: whose jobs wait.
            since: when the oldest of them was asked for.
            now: seconds, on the clock of `since`.
        """
        account = self._accounts.get(share)
        if account is None:
            return since - now
        return account.seconds_at(now) - (now - max(since, account.at))


def in_order(
    waiting: Iterable[Waiting], shares: Shares, turn: int, now: float
) -> tuple[Waiting, ...]:
    """The jobs as they would be computed if each took as long, and no others came.

    Args:
        waiting: at most one of each number.
        shares: what was computed before.
        turn: how many jobs have begun so far.
        now: seconds, on the clock of `Waiting.since`.
    """
    by_cost: dict[Cost, list[Waiting]] = defaultdict(list)
    for job in sorted(waiting, key=lambda job: job.number):
        by_cost[job.cost].append(job)
    queues = [_by_callers(by_cost[cost], shares, now)[::-1] for cost in sorted(by_cost)]
    ordered: list[Waiting] = []
    while queues:
        dearest = (turn + len(ordered)) % DEAREST_EVERY == DEAREST_EVERY - 1
        queue = queues[-1 if dearest else 0]
        ordered.append(queue.pop())
        if not queue:
            queues.remove(queue)
    return tuple(ordered)


def _by_callers(jobs: Sequence[Waiting], shares: Shares, now: float) -> list[Waiting]:
    """Callers take turns, and within each its runs."""

    def caller(job: Waiting) -> Share:
        # Of several who wait for it the one whose turn is next.
        return min(
            ((name,) for name in job.callers),
            key=lambda share: (shares.due(share, job.since, now), share),
        )

    def by_runs(caller: Share, jobs: Sequence[Waiting]) -> list[Waiting]:
        return _rounds(_grouped(jobs, lambda job: (*caller, job.run)), shares, now)

    groups = _grouped(jobs, caller)
    return _rounds({share: by_runs(share, own) for share, own in groups.items()}, shares, now)


def _grouped(
    jobs: Sequence[Waiting], share_of: Callable[[Waiting], Share]
) -> dict[Share, list[Waiting]]:
    groups: dict[Share, list[Waiting]] = defaultdict(list)
    for job in jobs:
        groups[share_of(job)].append(job)
    return groups


def _rounds(groups: dict[Share, list[Waiting]], shares: Shares, now: float) -> list[Waiting]:
    """One job of each group, then a second one of each; the group that is due goes first."""

    def due(share: Share) -> tuple[float, int]:
        oldest = min(groups[share], key=lambda job: job.number)
        return shares.due(share, oldest.since, now), oldest.number

    rounds = zip_longest(*(groups[share] for share in sorted(groups, key=due)))
    return [job for jobs in rounds for job in jobs if job is not None]


# Lane: one process, the jobs that wait for it, and the one that it computes.
#
# Whoever has a job waits here; who leaves takes it along, also from the process.

ResultT = TypeVar("ResultT")

# Who is refused is told to come again when a job is likely to have ended, within these bounds.
_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS = 1.0, 60.0
_WAITING, _BEGINNING = "waiting for its turn", "beginning"
_NOTHING_YET = Progressed("", 0, 0)
_OF_THE_PIPELINE = frozenset({PIPELINE})


class Place(Protocol):
    """Where jobs are run, one at a time: a process, or a thread of this one."""

    @property
    def pid(self) -> int | None:
        """Of the process, where it has one of its own and that is there now."""
        ...

    async def run(self, job: Job[ResultT], on_progress: OnProgress = ...) -> ResultT:
        """The job's result."""
        ...

    def drop(self) -> None:
        """Have the job given up that is under way, or about to be."""
        ...

    def start(self) -> object:
        """Be there before the first job."""
        ...

    def stop(self) -> None:
        """End, for good."""
        ...


@dataclass(eq=False)
class _Entry:
    """A job that waits or is computed; `ahead` is what was last said of its place."""

    number: int
    since: float
    job: Job[Any]
    asked: Asked
    on_progress: OnProgress
    outcome: asyncio.Future[Any]
    ahead: int = 0
    latest: Progressed = _NOTHING_YET

    def tell(self, progressed: Progressed) -> None:
        """Say how far it is, where that is still of interest."""
        if not isinstance(progressed, Aside):
            self.latest = progressed
        if not self.outcome.done():
            self.on_progress(progressed)

    def waiting(self) -> Waiting:
        """As it is ordered, with those who wait now."""
        callers = _OF_THE_PIPELINE if self.asked.callers is None else self.asked.callers()
        return Waiting(self.number, self.since, self.asked.run, callers, self.asked.cost)


@dataclass(frozen=True)
class Computation:
    """A job that waits or is computed, as whoever watches is shown it.

    lane: the name of its lane.
    job: what it is called.
    run: the id of its run; empty for the data alone.
    num_callers: who waits for it; 0 where its run alone does.
    computing: whether it has had its turn.
    seconds: for how long it has been computed, or has waited.
    progress: how far it is.
    """

    lane: str
    job: str
    run: str
    num_callers: int
    computing: bool
    seconds: float
    progress: Progressed


class Lane:
    """Jobs for one place."""

    def __init__(
        self,
        process: Place,
        settings: ComputeSettings,
        events: Events,
        *,
        clock: Callable[[], float],
        name: str = "dear",
        meters: Meters | None = None,
    ) -> None:
        """Begin with nothing.

        Args:
            process: nobody else uses it.
            settings: how many jobs may wait.
            events: where dropped jobs are counted.
            clock: seconds.
            name: what it is called where it is measured.
            meters: where waiting and computing are measured.
        """
        self.process = process
        self._name = name
        self._meters = meters or Meters()
        self._settings = settings
        self._events = events
        self._clock = clock
        self._numbers = count()
        self._waiting: dict[int, _Entry] = {}
        self._present: _Entry | None = None
        self._computing: asyncio.Task[None] | None = None
        self._began = 0.0
        self._turn = 0
        self._shares = Shares()
        # Of the last jobs, the latest most.
        self._typical_seconds = 0.0
        self._telling = self._stopped = False

    @property
    def num_waiting(self) -> int:
        """How many jobs have not begun."""
        return len(self._waiting)

    def computations(self, name: str) -> tuple[Computation, ...]:
        """What is computed, then what waits, as it would have its turn now.

        Args:
            name: the lane's.
        """
        now = self._clock()
        waiting = [self._waiting[job.number] for job in self._in_order()]
        present = [] if self._present is None else [self._present]
        return tuple(
            Computation(
                lane=name,
                job=name_of(entry.job),
                run=entry.asked.run,
                num_callers=0 if entry.asked.callers is None else len(entry.asked.callers()),
                computing=entry is self._present,
                seconds=now - (self._began if entry is self._present else entry.since),
                progress=entry.latest,
            )
            for entry in (*present, *waiting)
        )

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest of them has waited; 0 where there is none."""
        now = self._clock()
        return max((now - entry.since for entry in self._waiting.values()), default=0.0)

    async def run(self, job: Job[ResultT], on_progress: OnProgress, asked: Asked) -> ResultT:
        """The job's result, once it had its turn; who stops waiting drops it.

        Raises:
            QueueFullError: too many wait already.
            LiptError, TooDearError: what the process raises.
        """
        if asked.callers is not None:
            self._require_room(asked.callers())
        outcome = asyncio.get_running_loop().create_future()
        entry = _Entry(next(self._numbers), self._clock(), job, asked, on_progress, outcome)
        self._waiting[entry.number] = entry
        self._proceed()
        try:
            result: ResultT = await outcome
        except asyncio.CancelledError:
            self._drop(entry)
            raise
        return result

    async def stop(self) -> None:
        """End the process, for good; nobody can be waiting any more."""
        self._stopped = True
        for entry in self._waiting.values():
            entry.outcome.cancel()
        if self._computing is not None:
            self._computing.cancel()
            await asyncio.wait({self._computing})
        self.process.stop()

    def _require_room(self, callers: frozenset[str]) -> None:
        of_trainers = [entry for entry in self._waiting.values() if entry.asked.callers is not None]
        own = sum(bool(callers & entry.waiting().callers) for entry in of_trainers)
        limits = self._settings
        if len(of_trainers) < limits.max_waiting and own < limits.max_waiting_per_caller:
            return
        elapsed = self._clock() - self._began if self._present is not None else 0.0
        raise QueueFullError(
            num_waiting=len(of_trainers),
            num_own=own,
            max_waiting=limits.max_waiting,
            max_own=limits.max_waiting_per_caller,
            # What has taken long so far goes on for as long again, most likely.
            retry_after_seconds=min(
                max(self._typical_seconds, elapsed, _MIN_RETRY_SECONDS), _MAX_RETRY_SECONDS
            ),
        )

    def _in_order(self) -> tuple[Waiting, ...]:
        # What nobody waits for any more is about to be dropped.
        waiting = [job for entry in self._waiting.values() if (job := entry.waiting()).callers]
        return in_order(waiting, self._shares, self._turn, self._clock())

    def _proceed(self) -> None:
        """Begin the next job where none is computed, and tell the others their places."""
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self._tell)
        order = () if self._present is not None or self._stopped else self._in_order()
        if order:
            self._turn += 1
            self._present = self._waiting.pop(order[0].number)
            self._began = self._clock()
            self._meters.observe(QUEUE_WAIT, self._began - self._present.since, self._name)
            self._present.tell(Progressed(_BEGINNING, 0, 0))
            self._computing = asyncio.create_task(self._compute(self._present, order[0]))

    def _tell(self) -> None:
        self._telling = False
        for place, job in enumerate(self._in_order()):
            entry, ahead = self._waiting[job.number], place + (self._present is not None)
            if entry.ahead != ahead:
                entry.ahead = ahead
                entry.tell(Progressed(_WAITING, 0, 0, ahead))

    async def _compute(self, entry: _Entry, waited: Waiting) -> None:
        outcome = entry.outcome
        try:
            result = await self.process.run(entry.job, entry.tell)
            if not outcome.done():
                outcome.set_result(result)
        except asyncio.CancelledError:
            outcome.cancel()
            raise
        except DroppedError:
            outcome.cancel()
        except BaseException as error:  # noqa: BLE001 - of whoever waits for it
            if not outcome.done():
                outcome.set_exception(error)
        finally:
            now = self._clock()
            seconds = now - self._began
            self._shares.charge(waited, seconds, now)
            self._meters.observe(JOB, seconds, self._name, name_of(entry.job))
            self._typical_seconds += 0.3 * (seconds - self._typical_seconds)
            self._present = None
            self._proceed()

    def _drop(self, entry: _Entry) -> None:
        begun = self._waiting.pop(entry.number, None) is None
        if begun and entry is not self._present:
            return  # it has ended
        if begun:
            self.process.drop()
        self._events.record(
            EventKind.JOB_DROPPED,
            detail="computing" if begun else "waiting",
            job=name_of(entry.job),
            run=entry.asked.run,
        )
        self._proceed()
