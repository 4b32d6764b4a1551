from __future__ import annotations

import asyncio

import pytest

from lipt.coordinator.compute.progress import OnProgress, Progressed
from lipt.coordinator.rpc import answering as module
from lipt.coordinator.rpc.answering import Answering


async def test_only_the_latest_report_is_told() -> None:
    let_go = asyncio.Event()

    async def answer(report: OnProgress) -> str:
        report(Progressed("first", 1, 3))
        report(Progressed("second", 2, 3))
        await let_go.wait()
        return "done"

    with Answering(answer) as answering:
        assert await answering.next_report() == Progressed("second", 2, 3)
        let_go.set()
        assert await answering.next_report() is None
        assert answering.result() == "done"


async def test_silence_is_broken_by_what_was_told_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SIGN_OF_LIFE_SECONDS", 0.01)

    async def answer(report: OnProgress) -> None:
        report(Progressed("thinking", 0, 0))
        await asyncio.Event().wait()

    with Answering(answer) as answering:
        told = [await answering.next_report() for _ in range(3)]
    assert told == [Progressed("thinking", 0, 0)] * 3


async def test_a_failure_is_raised_in_the_place_of_the_answer() -> None:
    async def answer(report: OnProgress) -> None:
        raise ValueError("no")

    with Answering(answer) as answering:
        assert await answering.next_report() is None
        with pytest.raises(ValueError, match="no"):
            answering.result()


async def test_leaving_gives_the_answer_up() -> None:
    begun, given_up = asyncio.Event(), asyncio.Event()

    async def answer(report: OnProgress) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    with Answering(answer):
        await begun.wait()
    await given_up.wait()
