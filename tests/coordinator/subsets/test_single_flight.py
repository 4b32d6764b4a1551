from __future__ import annotations

import asyncio

import pytest

from lipt.common.errors import BudgetError
from lipt.coordinator.compute.messages import OnProgress, Progressed
from lipt.coordinator.subsets import Callers, SingleFlight

WAITING, HALF, DONE = (
    Progressed("waiting", 0, 0, ahead=3),
    Progressed("working", 1, 2),
    Progressed("working", 2, 2),
)


class Work:
    """Reports once, waits to be let go, and answers with how often it was begun."""

    def __init__(self, first: Progressed = HALF) -> None:
        self.begun = 0
        self.reported, self.let_go, self.given_up = asyncio.Event(), asyncio.Event(), 0
        self._first = first

    async def __call__(self, report: OnProgress, callers: Callers) -> int:
        self.begun += 1
        self.report, self.callers = report, callers
        report(self._first)
        self.reported.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        report(DONE)
        return self.begun


@pytest.fixture
def flights() -> SingleFlight:
    return SingleFlight()


def ask(
    flights: SingleFlight, work: Work, key: str = "a", caller: str = "me"
) -> tuple[asyncio.Task[int], list[Progressed]]:
    reports: list[Progressed] = []
    run = flights.run(key, work, reports.append, lambda: frozenset({caller}))
    return asyncio.create_task(run), reports


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_callers_of_one_key_share_one_computation(flights: SingleFlight) -> None:
    work = Work()
    asking = [ask(flights, work, key) for key in ("a", "a", "b")]
    await work.reported.wait()
    late, heard = ask(flights, work, "a")
    await settled()
    assert heard == [HALF]
    work.let_go.set()
    assert await late == await asking[0][0] == await asking[1][0]
    assert heard == asking[0][1] == [HALF, DONE]
    await asking[2][0]
    assert work.begun == 2


@pytest.mark.parametrize("reached", [WAITING, HALF])
async def test_a_computation_is_cancelled_with_its_last_caller(
    flights: SingleFlight, reached: Progressed
) -> None:
    work = Work(reached)
    first, second = ask(flights, work, caller="one"), ask(flights, work, caller="two")
    await work.reported.wait()
    assert work.callers() == {"one", "two"}
    first[0].cancel()
    await asyncio.wait({first[0]})
    await settled()
    assert (work.callers(), work.given_up) == ({"two"}, 0)
    second[0].cancel()
    # A new request, even at once, starts a new computation.
    again = ask(flights, work)
    work.let_go.set()
    assert (await again[0], work.given_up) == (2, 1)


async def test_a_failure_reaches_all_callers_and_is_not_cached(flights: SingleFlight) -> None:
    calls = []

    async def fail(report: OnProgress, callers: Callers) -> int:
        calls.append(1)
        await asyncio.sleep(0)
        raise BudgetError("budget 0 is outside 1..10.")

    async def failing() -> int:
        return await flights.run("a", fail, lambda _: None, lambda: frozenset({"me"}))

    outcomes = await asyncio.gather(failing(), failing(), return_exceptions=True)
    assert all(isinstance(error, BudgetError) for error in outcomes)
    with pytest.raises(BudgetError):
        await failing()
    assert len(calls) == 2


async def test_stopping_cancels_computations(flights: SingleFlight) -> None:
    work = Work()
    waiting, _ = ask(flights, work)
    await work.reported.wait()
    await flights.stop()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.given_up == 1
