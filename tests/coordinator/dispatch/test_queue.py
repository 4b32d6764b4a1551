from __future__ import annotations

from lipt.coordinator.dispatch.handing_out import WorkerQueue
from lipt.coordinator.dispatch.leases import AssignmentKey


async def test_who_has_asked_longest_is_first_and_keeps_the_place_between_polls() -> None:
    queue = WorkerQueue()
    first = queue.join("a")
    queue.join("b")
    queue.leave("a", first)
    assert queue.in_order() == ["b"]
    queue.join("a")
    assert queue.in_order() == ["a", "b"]


async def test_who_was_served_goes_to_the_end() -> None:
    queue = WorkerQueue()
    turn = queue.join("a")
    queue.join("b")
    assert queue.serve("a", AssignmentKey("run", 0))
    assert turn.result() == AssignmentKey("run", 0)
    queue.join("a")
    assert queue.in_order() == ["b", "a"]


async def test_worker_that_asks_again_waits_once() -> None:
    queue = WorkerQueue()
    earlier, later = queue.join("a"), queue.join("a")
    assert earlier.cancelled()
    queue.leave("a", earlier)
    assert queue.in_order() == ["a"]
    queue.leave("a", later)
    assert not queue.worker_ids()


async def test_learner_of_a_poll_that_was_cancelled_goes_to_the_next() -> None:
    queue = WorkerQueue()
    queue.join("a").cancel()
    assert not queue.serve("a", AssignmentKey("run", 0))
    assert not queue.worker_ids()
