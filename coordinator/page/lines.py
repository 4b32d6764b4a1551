"""Lines: a computation's progress and then its result, each as a line of JSON.

What is refused before anything was done is an answer of its own, with its status; what fails
later is the last line.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response

from lipt.common.errors import LiptError
from lipt.coordinator.compute.progress import OnProgress, Progressed
from lipt.coordinator.page.answers import Streaming, as_dict, as_json, error_value
from lipt.coordinator.page.telling import incident
from lipt.coordinator.rpc.answering import Answering
from lipt.coordinator.rpc.messages import progress_view
from lipt.coordinator.runs.store import Activity

ResultT = TypeVar("ResultT")
_MEDIA_TYPE = "application/x-ndjson"


async def in_lines(
    compute: Callable[[OnProgress], Coroutine[Any, Any, ResultT]],
    show: Callable[[ResultT], Awaitable[dict[str, Any]]],
) -> Response:
    """An answer that tells how far a computation is, until its result is there.

    Args:
        compute: makes the result, and is told where to report; given up when the reader leaves.
        show: the result as the last line.

    Raises:
        LiptError: it was refused before its first line.
    """
    lines = _lines(compute, show)
    first = await anext(lines)
    return Streaming(_guarded(first, lines), media_type=_MEDIA_TYPE)


async def _lines(
    compute: Callable[[OnProgress], Coroutine[Any, Any, ResultT]],
    show: Callable[[ResultT], Awaitable[dict[str, Any]]],
) -> AsyncGenerator[dict[str, Any], None]:
    with Answering(compute) as answering:
        while (latest := await answering.next_report()) is not None:
            yield {"progress": _progress(latest)}
        result = answering.result()
    yield await show(result)


async def _guarded(
    first: dict[str, Any], lines: AsyncGenerator[dict[str, Any], None]
) -> AsyncIterator[bytes]:
    async with aclosing(lines):
        yield as_json(first) + b"\n"
        try:
            async for line in lines:
                yield as_json(line) + b"\n"
        except LiptError as error:
            yield as_json(error_value(error)) + b"\n"
        except Exception as error:  # noqa: BLE001 - the outermost frame of a stream
            yield as_json(error_value(incident(error, "a stream of the page"))) + b"\n"


def _progress(latest: Progressed) -> dict[str, Any]:
    return as_dict(
        progress_view(Activity(latest.activity, latest.done, latest.total, latest.ahead))
    )
