from __future__ import annotations

import asyncio

import pytest

from lipt.common.errors import BudgetError
from lipt.coordinator.compute.process import OnProgress
from lipt.coordinator.runs.store import Activity
from lipt.coordinator.subsets.single_flight import Computations


class Work:
    """Reports once, waits to be let go, and answers with how often it was begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.let_go = asyncio.Event()

    async def __call__(self, report: OnProgress) -> int:
        self.begun += 1
        report("working", 1, 2)
        await self.let_go.wait()
        report("working", 2, 2)
        return self.begun


async def outcome(computations: Computations, key: str, work: Work) -> list[Activity | int]:
    return [part async for part in computations.follow(key, work)]


async def test_all_who_ask_for_one_key_wait_for_one_computation() -> None:
    computations, work = Computations(), Work()
    asking = [asyncio.create_task(outcome(computations, "a", work)) for _ in range(3)]
    other = asyncio.create_task(outcome(computations, "b", work))
    parts = computations.follow("a", work)
    assert isinstance(await anext(parts), Activity)
    work.let_go.set()
    answers = [(await task)[-1] for task in asking]
    assert answers[0] == answers[1] == answers[2]
    await other
    assert work.begun == 2


async def test_what_nobody_waits_for_goes_on_and_what_has_ended_begins_anew() -> None:
    computations, work = Computations(), Work()
    parts = computations.follow("a", work)
    assert await anext(parts) == Activity("working", 1, 2)
    await parts.aclose()  # type: ignore[attr-defined]
    assert work.begun == 1
    work.let_go.set()
    assert (await outcome(computations, "a", work))[-1] == 1
    await asyncio.sleep(0)  # callbacks of the end are called
    assert (await outcome(computations, "a", work))[-1] == 2


async def test_a_failure_reaches_everybody_and_is_not_kept() -> None:
    computations, calls = Computations(), []

    async def fail(report: OnProgress) -> int:
        calls.append(1)
        await asyncio.sleep(0)
        raise BudgetError("budget 0 is outside 1..10.")

    async def ask() -> None:
        async for _ in computations.follow("a", fail):
            pass

    outcomes = await asyncio.gather(ask(), ask(), return_exceptions=True)
    assert all(isinstance(error, BudgetError) for error in outcomes)
    with pytest.raises(BudgetError):
        await ask()
    assert len(calls) == 2


async def test_stopping_ends_what_is_computed() -> None:
    computations, work = Computations(), Work()
    parts = computations.follow("a", work)
    assert await anext(parts) == Activity("working", 1, 2)
    await computations.stop()
    with pytest.raises(asyncio.CancelledError):
        await anext(parts)
