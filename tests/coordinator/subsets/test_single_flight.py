from __future__ import annotations

import asyncio

import pytest

from lipt.common.errors import BudgetError
from lipt.coordinator.compute.process import OnProgress
from lipt.coordinator.subsets.single_flight import SingleFlight

Reports = list[tuple[str, int, int]]


class Work:
    """Reports once, waits to be let go, and answers with how often it was begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.reported = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, report: OnProgress) -> int:
        self.begun += 1
        report("working", 1, 2)
        self.reported.set()
        await self.let_go.wait()
        report("working", 2, 2)
        return self.begun


def ask(flights: SingleFlight, key: str, work: Work) -> tuple[asyncio.Task[int], Reports]:
    reports: Reports = []
    run = flights.run(key, work, lambda *report: reports.append(report))
    return asyncio.create_task(run), reports


async def test_all_who_ask_for_one_key_wait_for_one_computation() -> None:
    flights, work = SingleFlight(), Work()
    asking = [ask(flights, key, work) for key in ("a", "a", "b")]
    await work.reported.wait()
    late, heard = ask(flights, "a", work)
    await asyncio.sleep(0)  # it joins
    assert heard == [("working", 1, 2)]
    work.let_go.set()
    assert await late == await asking[0][0] == await asking[1][0]
    assert heard == asking[0][1] == [("working", 1, 2), ("working", 2, 2)]
    await asking[2][0]
    assert work.begun == 2


async def test_what_nobody_waits_for_goes_on_and_what_has_ended_begins_anew() -> None:
    flights, work = SingleFlight(), Work()
    leaving, reports = ask(flights, "a", work)
    await work.reported.wait()
    leaving.cancel()
    await asyncio.wait({leaving})
    work.let_go.set()
    assert await ask(flights, "a", work)[0] == 1
    assert reports == [("working", 1, 2)]
    await asyncio.sleep(0)  # callbacks of the end are called
    assert await ask(flights, "a", work)[0] == 2


async def test_a_failure_reaches_everybody_and_is_not_kept() -> None:
    flights, calls = SingleFlight(), []

    async def fail(report: OnProgress) -> int:
        calls.append(1)
        await asyncio.sleep(0)
        raise BudgetError("budget 0 is outside 1..10.")

    async def ask() -> int:
        return await flights.run("a", fail, lambda *_: None)

    outcomes = await asyncio.gather(ask(), ask(), return_exceptions=True)
    assert all(isinstance(error, BudgetError) for error in outcomes)
    with pytest.raises(BudgetError):
        await ask()
    assert len(calls) == 2


async def test_stopping_ends_what_is_computed() -> None:
    flights, work = SingleFlight(), Work()
    waiting, _ = ask(flights, "a", work)
    await work.reported.wait()
    await flights.stop()
    with pytest.raises(asyncio.CancelledError):
        await waiting
