"""Stopping: what is under way is given up as soon as the service has to end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, ResultT]) -> ResultT | None:
    """What comes of `work`; None where `stop` is set before, and `work` has been cancelled."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.wait({working})
