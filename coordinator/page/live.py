"""Live: how the whole service stands, again and again, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from lipt.coordinator.page.answers import Streaming, answer, as_dict, as_json
from lipt.coordinator.page.page import Asked
from lipt.coordinator.rpc.watching import DEFAULT_INTERVAL_SECONDS
from lipt.v1 import info_pb2 as pb

_NUM_RUNS = 50


async def info(asked: Asked, _: None) -> Response:
    """GET /api/info: this coordinator and its data."""
    return answer(as_dict(asked.page.info.describe()))


async def live(asked: Asked, _: None) -> Response:
    """GET /api/live: until the session or the service ends."""
    asked.page.live_streams.require_room(asked.own.key)
    return Streaming(_events(asked), media_type="text/event-stream")


async def _events(asked: Asked) -> AsyncIterator[bytes]:
    page, session = asked.page, asked.own
    answers: Any = page.watching.answers(
        interval_seconds=DEFAULT_INTERVAL_SECONDS, num_runs=_NUM_RUNS
    )
    with page.live_streams.one_more(session.key):
        async with aclosing(answers):
            async for told in answers:
                if not page.sessions.holds(session):
                    return
                yield await asyncio.to_thread(_event, told)


def _event(told: pb.WatchServiceResponse) -> bytes:
    # JSON has no line breaks, and an event's data ends with one.
    return b"event: service\ndata: " + as_json(as_dict(told)) + b"\n\n"
