"""How many workers there should be, also over the long life of a pool."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lipt.worker.pool.scaling import Bounds, Demand, Plan, Restraint, plan

BOUNDS = Bounds(fewest=1, most=4)


def planned(demand: Demand, num_present: int, **changes: Any) -> Plan:
    given: dict[str, Any] = {
        "quiet_since": 0.0,
        "idle_seconds": 60.0,
        "not_before": 0.0,
        "now": 10.0,
    }
    return plan(demand, num_present, BOUNDS, **(given | changes))


@pytest.mark.parametrize(
    ("demand", "num_present", "num_to_start"),
    [
        (Demand(), 0, 1),
        (Demand(), 1, 0),
        (Demand(num_queued=3), 1, 2),
        (Demand(num_queued=1, num_leased=1, num_coming=1), 0, 3),
        (Demand(num_queued=9), 1, 3),
        (Demand(num_leased=1), 4, 0),
    ],
)
def test_there_is_a_worker_for_every_open_learner_within_bounds(
    demand: Demand, num_present: int, num_to_start: int
) -> None:
    assert planned(demand, num_present).num_to_start == num_to_start


def test_reason_says_what_the_learners_are_and_what_bounds_the_workers() -> None:
    assert planned(Demand(num_queued=2, num_leased=1), 0).reason == (
        "learners: 2 waiting, 1 with a worker"
    )
    assert planned(Demand(num_coming=9), 0).reason == (
        "learners: 9 about to come, and there are 4 workers at most"
    )
    assert planned(Demand(), 0).reason == "there are always 1"


def test_workers_are_ended_once_no_learner_was_open_for_long_enough() -> None:
    assert not planned(Demand(), 3, now=59.0).shrink
    assert planned(Demand(), 3, now=60.0) == Plan(
        shrink=True, reason="there has been no learner for 60 s"
    )
    # While one is open, who has nothing to do leaves by itself.
    assert not planned(Demand(num_leased=1), 3, now=1000.0).shrink
    assert not planned(Demand(), 1, now=1000.0).shrink


def test_nobody_is_started_while_that_would_be_for_nothing() -> None:
    assert planned(Demand(num_queued=2), 0, not_before=10.5) == Plan()
    assert planned(Demand(num_queued=2), 0, not_before=10.0).num_to_start == 2


def test_workers_that_fail_when_young_are_started_again_after_growing_pauses() -> None:
    restraint, now, pauses = Restraint(), 0.0, []
    for _ in range(8):
        restraint = restraint.after_end(failed=True, age_seconds=5.0, now=now)
        pauses.append(restraint.not_before - now)
        now = restraint.not_before
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    # One that worked for long says that workers can; so does none that merely left.
    assert restraint.after_end(failed=False, age_seconds=5.0, now=now) == restraint
    assert restraint.after_end(failed=True, age_seconds=60.0, now=now) == Restraint()


def test_workers_that_fail_together_are_one_reason_to_wait() -> None:
    restraint = Restraint()
    for _ in range(10):
        restraint = restraint.after_end(failed=True, age_seconds=1.0, now=5.0)
    assert restraint == Restraint(num_in_vain=1, not_before=6.0)


class Life:
    """A pool second by second: workers take learners when there are some, and leave when idle."""

    def __init__(self, bounds: Bounds, idle_seconds: float) -> None:
        self.bounds, self.idle_seconds = bounds, idle_seconds
        self.now = self.quiet_since = 0.0
        # When each worker last had a learner.
        self.workers: list[float] = []
        self.num_started = 0

    def second(self, num_open: int) -> None:
        self.now += 1.0
        if num_open:
            self.quiet_since = self.now
        busy = min(num_open, len(self.workers))
        self.workers = [self.now] * busy + self.workers[busy:]
        here = self.bounds.fewest
        self.workers = self.workers[:here] + [
            last for last in self.workers[here:] if self.now - last < self.idle_seconds
        ]
        decided = plan(
            Demand(num_queued=num_open),
            len(self.workers),
            self.bounds,
            quiet_since=self.quiet_since,
            idle_seconds=self.idle_seconds,
            not_before=0.0,
            now=self.now,
        )
        if decided.shrink:
            self.workers = self.workers[: self.bounds.fewest]
        self.workers += [self.now] * decided.num_to_start
        self.num_started += decided.num_to_start


BOUNDED = st.tuples(st.integers(0, 5), st.integers(1, 10)).map(
    lambda pair: Bounds(min(pair), max(pair))
)


@given(BOUNDED, st.integers(1, 20), st.lists(st.integers(0, 15), min_size=1, max_size=120))
def test_there_are_never_fewer_or_more_than_may_be_and_the_fewest_when_idle(
    bounds: Bounds, idle_seconds: int, demands: list[int]
) -> None:
    life = Life(bounds, idle_seconds)
    for num_open in demands:
        life.second(num_open)
        assert bounds.fewest <= len(life.workers) <= bounds.most
        assert len(life.workers) >= min(num_open, bounds.most)
    for _ in range(idle_seconds + 1):
        life.second(0)
    assert len(life.workers) == bounds.fewest


@given(st.integers(1, 10), st.integers(2, 20), st.lists(st.integers(1, 19), max_size=30))
def test_pauses_shorter_than_the_patience_start_nobody_anew(
    num_learners: int, idle_seconds: int, pauses: list[int]
) -> None:
    life = Life(Bounds(0, 10), idle_seconds)
    life.second(num_learners)
    for pause in pauses:
        for _ in range(min(pause, idle_seconds - 1)):
            life.second(0)
        life.second(num_learners)
    assert life.num_started == num_learners
