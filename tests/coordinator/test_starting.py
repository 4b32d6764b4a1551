"""What a coordinator says until it serves."""

from __future__ import annotations

import asyncio

from lipt.coordinator.app import saying
from lipt.coordinator.compute.progress import Progressed
from tests.clock import Clock


async def test_silence_is_broken_with_the_latest_that_is_known() -> None:
    clock, lines, news = Clock(), list[str](), asyncio.Event()

    def say(line: str) -> None:
        lines.append(line)
        news.set()

    async with saying("opening x", say, tick_seconds=0.0, clock=lambda: clock.now) as report:
        clock.now = 9.0
        await news.wait()
        assert lines == ["opening x (for 9 s now)"]
        report(Progressed("reading x", 3, 10))
        assert len(lines) == 1  # something was just said
        news.clear()
        clock.now = 18.0
        await news.wait()
        assert lines[1:] == ["reading x: 3 of 10 (for 18 s now)"]


async def test_what_is_reported_is_said_every_few_seconds() -> None:
    clock, lines = Clock(), list[str]()
    async with saying("opening x", lines.append, clock=lambda: clock.now) as report:
        for clock.now in (1.0, 5.0, 6.0, 10.0):
            report(Progressed("reading x", round(clock.now), 10))
    assert lines == ["reading x: 5 of 10", "reading x: 10 of 10"]
