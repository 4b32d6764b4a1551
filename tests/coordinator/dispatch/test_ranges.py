from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lipt.coordinator.dispatch.ranges import RangeLease, RangeTable


def take(table: RangeTable, worker: str, now: float = 0.0) -> RangeLease:
    lease = table.take(worker, now, lease_seconds=10.0)
    assert lease is not None
    return lease


def test_the_first_range_that_is_missing_goes_first() -> None:
    table = RangeTable(4, present={0, 2})
    assert (take(table, "a").index, take(table, "b").index) == (1, 3)


def test_what_the_job_has_done_meanwhile_is_not_given_out() -> None:
    table = RangeTable(3)
    table.finish(0)
    table.finish(2)
    assert take(table, "a").index == 1


def test_a_worker_that_has_nothing_else_to_do_helps_the_slowest_once() -> None:
    table = RangeTable(2)
    slow, quick = take(table, "slow", 1.0), take(table, "quick", 2.0)
    table.finish(quick.index)
    assert take(table, "quick", 3.0).index == slow.index
    # Two are at it, and that is enough; who has a range is not given it twice.
    assert table.take("third", 4.0, lease_seconds=10.0) is None


def test_a_silent_worker_s_range_is_another_s_from_then_on() -> None:
    table = RangeTable(1)
    gone = take(table, "gone", 0.0)
    heir = take(table, "heir", 10.5)
    assert heir.index == gone.index
    assert table.find(gone.index, gone.epoch) is None
    assert table.find(heir.index, heir.epoch) == heir


def test_a_worker_that_is_heard_from_keeps_its_range() -> None:
    table = RangeTable(2)
    lease = take(table, "a", 0.0)
    table.renew(lease, 9.0, lease_seconds=10.0)
    assert take(table, "b", 12.0).index == 1
    assert table.held_by("a") is not None


def test_a_range_that_was_given_back_is_free_and_one_that_failed_is_not() -> None:
    table = RangeTable(2)
    first, second = take(table, "a"), take(table, "b")
    table.end(first)
    table.end(second, failed=True)
    assert take(table, "c").index == first.index
    assert table.take("d", 0.0, lease_seconds=10.0) is not None  # helps c
    assert table.take("e", 0.0, lease_seconds=10.0) is None


def test_what_a_liar_has_done_is_wanted_again_from_others() -> None:
    table = RangeTable(2)
    table.finish(take(table, "liar").index)
    table.exclude("liar", {0})
    assert table.take("liar", 0.0, lease_seconds=10.0) is None
    assert {take(table, "a").index, take(table, "b").index} == {0, 1}


def test_a_done_range_is_nobody_s() -> None:
    table = RangeTable(1)
    lease = take(table, "a")
    table.finish(lease.index)
    assert table.held_by("a") is None
    assert table.is_done(0)
    table.end(lease)  # harmless
    assert table.take("b", 0.0, lease_seconds=10.0) is None


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "finish", "end", "die"]))),
)
def test_however_workers_behave_every_range_is_done_in_the_end(
    num_ranges: int, turns: list[tuple[str, str]]
) -> None:
    table, now = RangeTable(num_ranges), 0.0
    for worker, turn in turns:
        now += 1.0
        held = table.held_by(worker)
        if turn == "take" and held is None:
            table.take(worker, now, lease_seconds=5.0)
        elif turn == "die":
            now += 6.0
        elif held is not None and turn == "finish":
            table.finish(held.index)
        elif held is not None:
            table.end(held)
    while (lease := table.take("last", now + 100.0, lease_seconds=5.0)) is not None:
        table.finish(lease.index)
    assert all(map(table.is_done, range(num_ranges)))
