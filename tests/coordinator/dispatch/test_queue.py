from __future__ import annotations

from lipt.coordinator.dispatch.queue import WaitingLine


async def test_who_has_asked_longest_is_first_and_keeps_the_place_between_polls() -> None:
    line = WaitingLine()
    first = line.join("a")
    line.join("b")
    line.leave("a", first)
    assert line.in_order() == ["b"]
    line.join("a")
    assert line.in_order() == ["a", "b"]


async def test_who_was_served_goes_to_the_end() -> None:
    line = WaitingLine()
    turn = line.join("a")
    line.join("b")
    assert line.serve("a", ("run", 0))
    assert turn.result() == ("run", 0)
    line.join("a")
    assert line.in_order() == ["b", "a"]


async def test_worker_that_asks_again_waits_once() -> None:
    line = WaitingLine()
    earlier, later = line.join("a"), line.join("a")
    assert earlier.cancelled()
    line.leave("a", earlier)
    assert line.in_order() == ["a"]
    line.leave("a", later)
    assert not line.worker_ids()


async def test_learner_of_a_poll_that_was_cancelled_goes_to_the_next() -> None:
    line = WaitingLine()
    line.join("a").cancel()
    assert not line.serve("a", ("run", 0))
    assert not line.worker_ids()
