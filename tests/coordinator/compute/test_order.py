from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lipt.coordinator.compute.lane import DEAREST_EVERY, Shares, Waiting, in_order
from lipt.coordinator.compute.messages import Cost
from tests.properties import at_most

NOW = 1000.0


def job(
    number: int,
    caller: str = "a",
    run: str = "r",
    cost: Cost = Cost.DEAR,
    since: float = NOW,
) -> Waiting:
    return Waiting(number, since, run, frozenset(caller.split()), cost)


def numbers(
    waiting: Sequence[Waiting], shares: Shares | None = None, *, turn: int = 0, now: float = NOW
) -> list[int]:
    return [job.number for job in in_order(waiting, shares or Shares(), turn, now)]


def test_equal_jobs_go_in_the_order_of_asking() -> None:
    assert numbers([job(2), job(0), job(1)]) == [0, 1, 2]
    assert numbers([]) == []


def test_cheaper_jobs_go_first() -> None:
    waiting = [job(0), job(1, cost=Cost.SIGNALS), job(2, cost=Cost.LABELS)]
    assert numbers(waiting) == [2, 1, 0]


def test_every_ninth_turn_is_one_of_the_dearest() -> None:
    cheap = [job(number, cost=Cost.LABELS) for number in range(1, 20)]
    waiting = [job(0), *cheap, job(20)]
    # Turns 0 to 8, then 9 to 17, then the rest.
    assert numbers(waiting) == [*range(1, 9), 0, *range(9, 17), 20, *range(17, 20)]
    assert numbers(waiting, turn=8)[0] == 0


def test_callers_take_turns() -> None:
    flood = [job(number, "flood") for number in range(5)]
    assert numbers([*flood, job(5, "b"), job(6, "b")]) == [0, 5, 1, 6, 2, 3, 4]


def test_the_runs_of_one_caller_take_turns() -> None:
    waiting = [job(0, run="x"), job(1, run="x"), job(2, run="x"), job(3, run="y")]
    assert numbers(waiting) == [0, 3, 1, 2]
    # Another caller has its half whatever the first one's runs are.
    assert numbers([*waiting, job(4, "b", run="x")]) == [0, 4, 3, 1, 2]


def test_who_had_less_lately_goes_first() -> None:
    shares = Shares()
    shares.charge(job(0, "a", run="x"), 20.0, NOW)
    shares.charge(job(0, "b", run="x"), 10.0, NOW)
    assert numbers([job(1, "a"), job(2, "b"), job(3, "c")], shares) == [3, 2, 1]
    # And so do runs.
    assert numbers([job(1, "a", run="x"), job(2, "a", run="y")], shares) == [2, 1]


def test_what_was_computed_weighs_half_as_much_after_ten_minutes() -> None:
    shares = Shares()
    shares.charge(job(0, "a"), 100.0, NOW)
    shares.charge(job(0, "b"), 40.0, NOW + 600.0)
    # 50 s of a's are left; both have just asked.
    waiting = [job(1, "a", since=NOW + 600.0), job(2, "b", since=NOW + 600.0)]
    assert numbers(waiting, shares, now=NOW + 600.0) == [2, 1]
    shares.charge(job(0, "b"), 20.0, NOW + 600.0)
    assert numbers(waiting, shares, now=NOW + 600.0) == [1, 2]


def test_waiting_outweighs_what_was_computed_before() -> None:
    shares = Shares()
    shares.charge(job(0, "a"), 30.0, NOW)
    waiting = [job(1, "a", since=NOW), job(2, "new", since=NOW + 20.0)]
    # After 20 s more than 29 s of a's 30 are left, less the 20 that it has waited.
    assert numbers(waiting, shares, now=NOW + 20.0) == [2, 1]
    waiting = [job(1, "a", since=NOW), job(2, "new", since=NOW + 31.0)]
    assert numbers(waiting, shares, now=NOW + 31.0) == [1, 2]


def test_what_several_wait_for_comes_when_the_first_of_them_is_due() -> None:
    shares = Shares()
    shares.charge(job(0, "flood"), 100.0, NOW)
    waiting = [job(1, "c"), job(2, "flood"), job(3, "flood b")]
    assert numbers(waiting, shares) == [1, 3, 2]


def test_those_who_waited_for_a_job_share_what_it_took() -> None:
    shares = Shares()
    shares.charge(job(0, "a b"), 30.0, NOW)
    shares.charge(job(0, "c"), 20.0, NOW)
    shares.charge(job(0, "d"), 10.0, NOW)
    waiting = [job(1, "c"), job(2, "a"), job(3, "d")]
    assert numbers(waiting, shares) == [3, 2, 1]


def test_accounts_of_callers_that_never_came_back_are_forgotten() -> None:
    shares = Shares()
    for number in range(5000):
        shares.charge(job(number, str(number)), 1.0, NOW + 60.0 * number)
    assert len(shares._accounts) < 2000


jobs = st.builds(
    lambda caller, run, cost, since: (caller, run, cost, NOW - since),
    st.sampled_from(["a", "b", "c", "a b"]),
    st.sampled_from(["x", "y"]),
    st.sampled_from(Cost),
    st.floats(0, 100),
)


@given(st.lists(jobs, max_size=30), st.integers(0, 100))
def test_every_job_has_one_place(drawn: list[tuple[str, str, Cost, float]], turn: int) -> None:
    waiting = [job(number, *values) for number, values in enumerate(drawn)]
    assert sorted(numbers(waiting, turn=turn)) == list(range(len(drawn)))


def simulated(
    waiting: list[Waiting],
    arriving: Callable[[int, float], Waiting],
    seconds_of: Callable[[Waiting], float],
    *,
    num_turns: int,
    shares: Shares | None = None,
) -> list[tuple[Waiting, float]]:
    """The jobs that begin one after another, and when, while one arrives at each turn."""
    shares, now, begun, ids = shares or Shares(), NOW, [], count(len(waiting))
    for turn in range(num_turns):
        waiting = [*waiting, arriving(next(ids), now)]
        chosen = in_order(waiting, shares, turn, now)[0]
        begun.append((chosen, now))
        waiting.remove(chosen)
        seconds = seconds_of(chosen)
        now += seconds
        shares.charge(chosen, seconds, now)
    return begun


@settings(max_examples=at_most(50))
@given(
    debt=st.floats(0, 30),
    seconds=st.floats(1, 20),
    cost=st.sampled_from(Cost),
    others=st.sampled_from(Cost),
)
def test_nobody_starves_although_others_arrive_without_end(
    debt: float, seconds: float, cost: Cost, others: Cost
) -> None:
    shares = Shares()
    shares.charge(job(0, "indebted"), debt, NOW)
    begun = simulated(
        [job(0, "indebted", cost=cost)],
        lambda number, now: job(number, f"new {number}", cost=others, since=now),
        lambda _: seconds,
        num_turns=(round(debt / seconds) + 3) * (DEAREST_EVERY if others < cost else 1),
        shares=shares,
    )
    assert 0 in [job.number for job, _ in begun]


@pytest.mark.parametrize("others", [Cost.LABELS, Cost.SIGNALS])
def test_a_dear_job_lets_eight_cheaper_ones_pass_at_most(others: Cost) -> None:
    begun = simulated(
        [job(0)],
        lambda number, now: job(number, f"new {number}", cost=others, since=now),
        lambda _: 0.01,
        num_turns=DEAREST_EVERY,
    )
    assert begun[-1][0].number == 0


@settings(max_examples=at_most(20))
@given(st.lists(st.floats(0.5, 10), min_size=1, max_size=5), st.floats(0.5, 10))
def test_callers_that_always_wait_have_equal_seconds(
    of_flood: list[float], of_other: float
) -> None:
    flood = [job(number, "flood") for number in range(150)]

    def seconds_of(job: Waiting) -> float:
        is_flood = "flood" in job.callers
        return of_flood[job.number % len(of_flood)] if is_flood else of_other

    # One more of the other's arrives whenever one has begun.
    begun = simulated(
        flood,
        lambda number, now: job(number, "other", since=now),
        seconds_of,
        num_turns=150,
    )
    seconds = Counter[str]()
    for chosen, _ in begun:
        seconds[min(chosen.callers)] += round(1000 * seconds_of(chosen))
    assert 0.4 < seconds["flood"] / seconds.total() < 0.6
