"""A pool's life with workers that a test ends, for a demand that it sets."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any, cast

import pytest

from lipt.common.errors import (
    IncompatibleProtocolError,
    LiptError,
    ProcessEndedError,
    UnreachableError,
)
from lipt.worker.pool.engine import Ended
from lipt.worker.pool.pool import Pool, PoolOptions
from lipt.worker.pool.scaling import Bounds, Demand
from tests.clock import Clock

IDLE_SECONDS = 60.0


class FakeEngine:
    """Keeps what it is told; `over` is what it tells of next."""

    def __init__(self) -> None:
        self.running: dict[int, Sequence[str]] = {}
        self.over: list[Ended] = []
        self.stopped: list[int] = []

    def start(self, number: int, arguments: Sequence[str]) -> None:
        assert number not in self.running
        self.running[number] = arguments

    def ended(self) -> list[Ended]:
        over, self.over = self.over, []
        for ended in over:
            del self.running[ended.number]
        return over

    def stop(self, numbers: Collection[int]) -> None:
        self.stopped += numbers
        self.over += [Ended(number, 0) for number in sorted(numbers)]

    def close(self) -> None: ...


class FakeSource:
    """Answers with these demands and errors in turn, and stops the pool after them."""

    def __init__(self, *answers: Demand | LiptError) -> None:
        self.answers = list(answers)
        self.known: list[Demand | None] = []
        self.refusal: LiptError | None = None
        self.pool: Pool | None = None

    def require_same_protocol(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def wait(self, known: Demand | None, *, wait_seconds: float) -> Demand:
        self.known.append(known)
        if not self.answers and self.pool is not None:
            self.pool.stop()
            raise UnreachableError("the end.")
        if isinstance(answer := self.answers.pop(0), LiptError):
            raise answer
        return answer

    def interrupt(self) -> None: ...


class Bench:
    def __init__(self, *answers: Demand | LiptError, fewest: int = 0, most: int = 4) -> None:
        self.clock, self.engine, self.source = Clock(100.0), FakeEngine(), FakeSource(*answers)
        options = PoolOptions(Bounds(fewest, most), IDLE_SECONDS, ["--coordinator", "head:1"])
        self.pool = Pool(options, cast("Any", self.source), self.engine, clock=self.clock)
        self.source.pool = self.pool

    def tend(self, demand: Demand, *, after_seconds: float = 1.0) -> list[int]:
        self.clock.now += after_seconds
        self.pool.tend(demand)
        return sorted(self.engine.running)

    def end(self, number: int, status: int | None, tail: str = "") -> None:
        self.engine.over.append(Ended(number, status, tail))


def test_workers_come_with_learners_and_are_ended_when_there_have_been_none() -> None:
    bench = Bench()
    assert bench.tend(Demand()) == []
    assert bench.tend(Demand(num_coming=3)) == [0, 1, 2]
    assert bench.tend(Demand(num_queued=3, num_leased=3)) == [0, 1, 2, 3]
    bench.tend(Demand())
    assert bench.engine.stopped == []
    bench.tend(Demand(), after_seconds=IDLE_SECONDS)
    assert bench.engine.stopped == [0, 1, 2, 3]
    assert bench.tend(Demand()) == []


def test_workers_beyond_the_fewest_leave_by_themselves_when_they_have_nothing_to_do() -> None:
    bench = Bench(fewest=1)
    bench.tend(Demand(num_queued=2))
    assert bench.engine.running == {
        0: ["--coordinator", "head:1"],
        1: ["--max-idle-seconds", "60", "--coordinator", "head:1"],
    }


def test_worker_that_has_left_is_not_replaced_while_the_others_are_enough() -> None:
    bench = Bench()
    bench.tend(Demand(num_queued=2))
    bench.end(0, 0)
    assert bench.tend(Demand(num_leased=1)) == [1]
    # Its number is free for the next.
    assert bench.tend(Demand(num_leased=1, num_queued=1)) == [0, 1]


def test_worker_that_was_lost_is_replaced_at_once() -> None:
    bench = Bench()
    bench.tend(Demand(num_queued=1))
    bench.end(0, None)
    assert bench.tend(Demand(num_queued=1)) == [0]


def test_worker_that_fails_is_started_again_after_a_pause_and_its_end_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.tend(Demand(num_queued=1))
    bench.end(0, 1, "lipt-worker: no such file")
    assert bench.tend(Demand(num_queued=1)) == []
    assert bench.tend(Demand(num_queued=1)) == [0]
    assert "worker 0 ended with status 1 after 1 s" in caplog.text
    assert "lipt-worker: no such file" in caplog.text


def test_arguments_that_no_worker_takes_end_the_pool() -> None:
    bench = Bench()
    bench.tend(Demand(num_queued=1))
    bench.end(0, 2, "No such option: --nonsense")
    with pytest.raises(ProcessEndedError, match="No such option: --nonsense"):
        bench.tend(Demand(num_queued=1))


def test_workers_that_cannot_take_what_waits_are_not_started_over_and_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waiting = Demand(num_queued=1)
    bench = Bench()
    bench.tend(waiting)
    bench.end(0, 0)
    assert bench.tend(waiting, after_seconds=IDLE_SECONDS + 5.0) == []
    assert "worker 0 left without a learner, and 1 wait" in caplog.text
    assert bench.tend(waiting, after_seconds=IDLE_SECONDS - 1.0) == []
    assert bench.tend(waiting) == [0]
    # Another demand is another matter.
    bench.end(0, 0)
    bench.tend(waiting, after_seconds=IDLE_SECONDS + 5.0)
    assert bench.tend(Demand(num_queued=2)) == [0, 1]


def test_coordinator_that_is_away_is_waited_for_and_takes_no_worker_along(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = UnreachableError("head:1 does not answer.")
    bench = Bench(Demand(num_queued=1), away, away, Demand(num_queued=2))
    monkeypatch.setattr(bench.pool._stopping, "wait", lambda _: None)
    with caplog.at_level(logging.INFO):
        bench.pool.run()
    assert sorted(bench.engine.running) == [0, 1]
    assert caplog.text.count("head:1 does not answer. Trying again until it answers.") == 1
    first, *others = bench.source.known
    assert first is None
    assert others == [Demand(num_queued=1)] * 3 + [Demand(num_queued=2)]


def test_coordinator_that_is_too_old_ends_the_pool() -> None:
    bench = Bench()
    bench.source.refusal = IncompatibleProtocolError("it speaks 1.4.")
    with pytest.raises(IncompatibleProtocolError):
        bench.pool.run()
