from __future__ import annotations

import asyncio

import pytest

from lipt.coordinator.rpc.answering import unless


async def test_work_that_comes_to_its_end_gives_its_result() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 5

    assert await unless(asyncio.Event(), work()) == 5


async def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await unless(asyncio.Event(), work())


@pytest.mark.parametrize("by", ["stop", "caller"])
async def test_work_that_is_given_up_has_ended_before_its_caller_goes_on(by: str) -> None:
    stop, begun, cleaned_up = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.set()

    waiting = asyncio.ensure_future(unless(stop, work()))
    await begun.wait()
    if by == "stop":
        stop.set()
        assert await waiting is None
    else:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert cleaned_up.is_set()
