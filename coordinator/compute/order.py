"""Queue order: which of the jobs that wait is computed next; pure but for the shares' account.

1.  Cheaper jobs go first; but of nine turns in a row the dearest that wait have one, so that
    they come to their turn as well.
2.  Callers take turns. The next one is who has had least: the seconds that were computed for it
    lately, less the seconds that it has waited since its last turn.
3.  So do the runs of one caller; a run's own jobs have one caller, the pipeline.
4.  Of the same run and caller the oldest goes first.

"Lately" is counted as batch systems count it (Slurm's fair share): a second of computing weighs
half as much after ten minutes. Waiting outweighs in the end whatever was computed before, so that
nobody starves, not even where others arrive without end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from lipt.coordinator.compute.messages import Cost

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
